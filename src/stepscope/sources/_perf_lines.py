"""Lines of `perf script` as the native reader takes them: a sample begins at the margin, and has a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["NO_CLOCK_NS", "perf_lines", "whole_module"]

NO_CLOCK_NS = 999_999_999_999_999_999
"""What the reader gives for `_NO_CLOCK`."""
_NO_CLOCK = rb"999999999.999999999: "
_LONGEST = 1 << 20
_THREAD = rb"[ \t]\d+(?:/\d+)?[ \t]+(?:\[\d+\][ \t]+)?"
"""The thread, and the processor if it is there."""
_EVENT = rb"[\w.:/\-=,@{}%()]+:"
_MARGIN = re.compile(rb"^[^\s#]", re.MULTILINE)
_INDENTED = re.compile(
    # A frame is left at once: an address, one blank and a symbol.
    rb"^ +(?![0-9a-f]+ [^\s\d])(?=\S[^\n]{0,64}?" + _THREAD + rb"(?:\d+\.\d+:[ \t]"
    rb"|(?:\d+[ \t]+)?" + _EVENT + rb"[ \t]+[0-9a-f]{1,16} [^\n]*\)\r?$))",
    re.MULTILINE,
)
"""Without call chains perf pads the name of the program: the line looks like a frame of the one before."""
_TIMELESS = re.compile(
    rb"^([^\s#](?:(?!\d+\.\d+:[ \t])[^\n]){0,64}?"
    + _THREAD
    + rb")(?=\d+[ \t]+"
    + _EVENT
    + rb"(?:[ \t]|\r?$))",
    re.MULTILINE,
)
"""A thread and a period with no time between them."""
_WHOLE_HEAD = re.compile(rb"(?<!\S)(?!\d+\.\d+:)\S*:[ \t]+\S")


def perf_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a text, cut at the ends of lines, with the first lines of samples made alike."""
    timeless: bool | None = None
    rest = b""
    for piece in pieces:
        whole, end, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > _LONGEST:
            yield whole + end + rest  # the reader leaves such a line out
            rest = b""
            continue
        if not end:
            continue
        if whole.startswith(b" ") or b"\n " in whole:
            whole = _INDENTED.sub(b"", whole)
        if timeless is None and _MARGIN.search(whole):  # the fields are the same in all of a file
            timeless = bool(_TIMELESS.search(whole))
        yield (_TIMELESS.sub(rb"\g<1>" + _NO_CLOCK, whole) if timeless else whole) + end
    yield _last(rest, timeless=timeless is not False)


def _last(line: bytes, *, timeless: bool) -> bytes:
    """The line at the end of a file, which may be cut."""
    plain = _INDENTED.sub(b"", line)
    if plain[:1] in (b"", b"#", b" ", b"\t"):
        return plain
    if not _WHOLE_HEAD.search(plain):
        return b"cut"  # a part of an event's name is no event; the reader counts a lone word as an odd line
    return _TIMELESS.sub(rb"\g<1>" + _NO_CLOCK, plain) if timeless else plain


_OFFSET = re.compile(r"\+0x[0-9a-f]+$")


def whole_module(name: str, module: str) -> tuple[str, str]:
    """A frame whose module has parentheses of its own: `[unknown] (/memfd:nvidia (deleted))`.

    The reader splits at the last blank with a parenthesis.
    """
    whole, depth = f"{name} ({module})", 0
    for at in range(len(whole) - 1, -1, -1):
        depth += (whole[at] == ")") - (whole[at] == "(")
        if not depth:
            return _OFFSET.sub("", whole[:at].strip()), whole[at + 1 : -1]
    return name, module
