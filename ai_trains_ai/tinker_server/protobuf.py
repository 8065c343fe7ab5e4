"""The protocol buffers wire format, as far as Tinker's messages need it: no schema compiler, no dependency.

    decode   bytes ─> {field number: [values, in order]}    varints as ints, everything else as bytes
    Message  fields appended one after another ─> bytes

Source: the "Encoding" page of the Protocol Buffers documentation. Groups, which are obsolete, are refused.
"""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def decode(data: bytes | memoryview) -> dict[int, list[int | memoryview]]:
    """Fields of one message. Raises ValueError when the bytes are no message."""
    view = memoryview(data)
    fields: dict[int, list[int | memoryview]] = {}
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == _VARINT:
            value, at = _varint(view, at)
        else:
            if kind == _BYTES:
                length, at = _varint(view, at)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"field {number} has wire type {kind}")
            if at + length > len(view):
                raise ValueError(f"field {number} ends after the message does")
            value, at = view[at : at + length], at + length
        fields.setdefault(number, []).append(value)
    return fields


class Fields:
    """One decoded message with typed access; proto3 defaults for what is absent.

    Every method raises ValueError when the field has another wire type than the one asked for.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._fields = decode(data)

    def has(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int) -> int:
        """The last value, as a signed 64-bit integer (int32, int64, bool, enum)."""
        value = self._fields.get(number, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {number} is no integer")
        return _signed(value)

    def integers(self, number: int) -> list[int]:
        """A repeated integer, packed or not."""
        found: list[int] = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                found.append(_signed(value))
                continue
            at = 0
            while at < len(value):
                item, at = _varint(value, at)
                found.append(_signed(item))
        return found

    def binary(self, number: int) -> bytes:
        return bytes(self.messages(number)[-1]) if self.has(number) else b""

    def text(self, number: int) -> str:
        return self.binary(number).decode()

    def double(self, number: int) -> float:
        raw = self.binary(number)
        if len(raw) not in (0, 8):
            raise ValueError(f"field {number} is no double")
        return float(struct.unpack("<d", raw)[0]) if raw else 0.0

    def messages(self, number: int) -> list[memoryview]:
        """Every value of a repeated message (or the single one of a plain field), still encoded."""
        found = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                raise ValueError(f"field {number} is an integer, bytes were expected")
            found.append(value)
        return found


class Message:
    """A message being written; the methods return it, so that fields can be chained."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def integer(self, number: int, value: int) -> Message:
        self._parts += [_encode(number << 3 | _VARINT), _encode(value & (2**64 - 1))]
        return self

    def binary(self, number: int, value: bytes) -> Message:
        self._parts += [_encode(number << 3 | _BYTES), _encode(len(value)), value]
        return self

    def text(self, number: int, value: str) -> Message:
        return self.binary(number, value.encode())

    def double(self, number: int, value: float) -> Message:
        self._parts += [_encode(number << 3 | _FIXED64), struct.pack("<d", value)]
        return self

    def message(self, number: int, value: Message) -> Message:
        return self.binary(number, bytes(value))

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError("a varint does not end")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
