from __future__ import annotations

from stepscope.errors import StepscopeError


def test_carries_message_hint_and_exit_code() -> None:
    error = StepscopeError("no such file", hint="stepscope info --demo", exit_code=3)
    assert (error.message, error.hint, error.exit_code) == ("no such file", "stepscope info --demo", 3)
    assert str(error) == "no such file"


def test_is_a_user_error_without_a_hint_unless_told() -> None:
    error = StepscopeError("wrong")
    assert (error.hint, error.exit_code) == ("", 1)
