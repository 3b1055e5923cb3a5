"""Numbers as Nsight Compute prints them: points and commas follow the language of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Notation", "notation_of"]

_NUMBER = r"^[-+]?\d{1,300}(\.\d{0,300})?([eE][-+]?\d{1,3})?$"
_BLANKS = r"[\s\x{00A0}\x{2009}\x{202F}'’]"
"""What else may stand between thousands: blanks of several widths, and apostrophes."""
_TELLS = (
    r"^[-+]?(\d{1,3}(T\d{3})+D\d+|\d{1,3}(T\d{3}){2,}|\d+D(\d{1,2}|\d{4,})|(0|\d{4,})D\d{3}"
    r"|\d+D\d+[eE][-+]?\d+)$"
)
"""A number that can only be read in one way, with T between thousands and D before decimals: 1,234 cannot."""


class Notation(NamedTuple):
    """What stands between thousands, and before decimals."""

    thousands: str
    decimal: str

    def plain(self, texts: pa.Array) -> pa.Array:
        """Numbers as everybody reads them; other texts become something that is no number either."""
        import pyarrow.compute as pc

        bare = pc.replace_substring_regex(texts, _BLANKS, "")
        bare = pc.replace_substring(bare, self.thousands, "")
        return bare if self.decimal == "." else pc.replace_substring(bare, self.decimal, ".")

    def are_numbers(self, plain: pa.Array) -> pa.Array:
        """Which of such texts are numbers."""
        import pyarrow.compute as pc

        return pc.match_substring_regex(plain, _NUMBER)

    def number(self, text: str) -> float | None:
        """One number; None for anything else."""
        bare = re.sub(r"[\s'’]", "", text)  # \s has all kinds of blanks here
        plain = bare.replace(self.thousands, "").replace(self.decimal, ".")
        if not re.match(_NUMBER, plain, re.ASCII):
            return None
        number = float(plain)
        return number if abs(number) < 1e300 else None

    @property
    def tells(self) -> str:
        """The pattern of numbers that have this notation and no other."""
        return _TELLS.replace("T", re.escape(self.thousands)).replace("D", re.escape(self.decimal))


ENGLISH = Notation(",", ".")
CONTINENTAL = Notation(".", ",")


def notation_of(texts: Iterable[str], *, semicolons: bool = False) -> Notation:
    """The notation of most numbers that tell it; English without any, but for a table with semicolons."""
    telling = [(re.compile(one.tells, re.ASCII), one) for one in (ENGLISH, CONTINENTAL)]
    counts = dict.fromkeys((ENGLISH, CONTINENTAL), 0)
    for text in texts:
        for pattern, one in telling:
            counts[one] += bool(pattern.match(text.strip()))
    if counts[ENGLISH] == counts[CONTINENTAL]:
        return CONTINENTAL if semicolons else ENGLISH
    return max(counts, key=lambda one: counts[one])
