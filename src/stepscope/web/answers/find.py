"""Search in the timeline: the next event with a name, or the one before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.store.timeline import begin_timeline

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.web.opened import Opened

__all__ = ["find"]

_NUMBER = re.compile(r"-?\d{1,18}")
_LONGEST = 1000


def find(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """The next event whose name has a text: `trace`, `text`, `from` in ns; `event`, `back=1`, `regex=1`.

    It starts after `from`; with the number of an `event` that starts then, it comes after that one, so that
    none of those that start together is passed over. Upper and lower case do not matter.
    """
    text = given.get("text", "")
    if not text or len(text) > _LONGEST:
        raise StepscopeError("nothing to search for", hint=f"text=gemm, of at most {_LONGEST} characters")
    one = opened.trace(given.get("trace"))
    regex = given.get("regex") == "1"
    names: dict[int, str] = one.once(("find", text, regex), lambda: _names(one.trace, text, regex=regex))
    timeline = begin_timeline(one.trace)
    event = _number(given["event"]) if given.get("event") else None
    back = given.get("back") == "1"
    found = timeline.find(list(names), _number(given.get("from", "0")), back=back, event=event)
    told = found and {**found._asdict(), "text": names[found.name]}
    return {"found": told, "names": len(names)}


def _names(trace: Trace, text: str, *, regex: bool) -> dict[int, str]:
    """The names that have the text; no regular expression of DuckDB takes more than linear time."""
    has = "regexp_matches(text, $wanted, 'i')" if regex else "contains(lower(text), lower($wanted))"
    rows = trace.reading(None).rows(f"SELECT id, text FROM stored.names WHERE {has}", wanted=text)
    return {row["id"]: row["text"] for row in rows}


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise StepscopeError(f"{text[:40]!r} is no number of ns", hint="from=0")
    return int(text)
