"""The texts of names that boxes of the timeline have by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["names"]

_MOST = 4096


def names(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """The texts of some names, in order: `trace`, `ids=1,5,77` or these as the body; "" for what is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = (given.get("ids") or given.get("body", "")).split(",", _MOST)
    try:
        ids = [int(word) for word in words if len(word) <= 10]
    except ValueError:
        ids = []
    if not ids or len(ids) != len(words) or len(ids) > _MOST:
        raise StepscopeError("no names were asked for", hint=f"ids=1,5,77 with at most {_MOST} numbers")
    # The first picture waits for this: it opens no database.
    known = opened.trace(given.get("trace")).trace.dictionary("names")
    found = known.filter(pc.is_in(known["id"].cast(pa.int64()), pa.array(set(ids), pa.int64())))
    texts = dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))
    return {"names": [texts.get(one) or "" for one in ids]}
