"""A look at the beginning of a protobuf file, to tell what it is; native code reads it."""

from __future__ import annotations

__all__ = ["leading_fields"]

Fields = list[tuple[int, int | bytes]]


def _varint(raw: bytes, at: int) -> tuple[int, int] | None:
    """The number at a place, and the place behind it; None where there is none."""
    value = 0
    for shift, byte in enumerate(raw[at : at + 10]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    return None


def leading_fields(head: bytes, field: int) -> Fields | None:
    """The fields of the message that a file begins with, as far as they are in its first bytes.

    None if the file does not begin with that field, if it is empty or no message, or if another kind of
    field follows it.
    """
    if head[:1] != bytes([field << 3 | 2]):
        return None
    found = _varint(head, 1)
    if found is None or found[0] == 0:
        return None
    size, at = found
    if len(head) > at + size and head[at + size] & 7 not in (0, 2):
        return None
    return _fields(head[at : at + size])


def _fields(message: bytes) -> Fields | None:
    fields: Fields = []
    at = 0
    while at < len(message):
        key = _varint(message, at)
        if key is None:
            break
        number, kind, at = key[0] >> 3, key[0] & 7, key[1]
        if number == 0 or kind in (3, 4, 6, 7):
            return None
        if kind in (1, 5):
            size = 8 if kind == 1 else 4
            fields.append((number, message[at : at + size]))
            at += size
            continue
        value = _varint(message, at)
        if value is None:
            break
        at = value[1]
        if kind == 0:
            fields.append((number, value[0]))
            continue
        fields.append((number, message[at : at + value[0]]))
        at += value[0]
    return fields
