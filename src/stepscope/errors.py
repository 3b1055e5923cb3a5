"""Errors that a user can cause and fix."""

from __future__ import annotations

__all__ = ["OutOfMemoryError", "StepscopeError"]


class StepscopeError(Exception):
    """An error that the user can fix: what is wrong, what to type, and the exit code.

    Exit codes: 1 a user error, 2 wrong usage, 3 a gate failed.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class OutOfMemoryError(StepscopeError):
    """Memory could not be had. What would have been found is not known, so nothing goes on without it."""
