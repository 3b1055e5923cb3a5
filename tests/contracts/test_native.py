"""What holds for the native code as a whole."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"
# A type that is declared at the beginning of a line belongs to the namespace, not to a class or a function.
DEFINED = re.compile(
    r"^(?:struct|class|enum(?: class)?|union) (\w+)(?: final)?(?: : [^;{]+)? \{", re.MULTILINE
)


def test_no_two_types_of_the_namespace_have_one_name() -> None:
    """Else the linker takes the functions of one for both, as it is free to, and which one is its choice."""
    headers = [path.read_text(encoding="utf-8") for path in sorted(NATIVE.rglob("*.hpp"))]
    found = Counter(name for text in headers for name in DEFINED.findall(text))
    assert len(found) > 50, "types are no longer declared like that"
    assert [name for name, times in found.items() if times > 1] == []
