"""Regular expressions that are compiled at first use: a report declares hundreds and uses half of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

__all__ = ["late_pattern"]

_METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")


class _Late:
    """Is compiled when something is asked of it, and has the methods of what was compiled from then on."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._given: Any = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        compiled = re.compile(*self._given)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def late_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, for constants of modules; an error in the text comes with the first use."""
    return cast("re.Pattern[AnyStr]", _Late(text, flags))
