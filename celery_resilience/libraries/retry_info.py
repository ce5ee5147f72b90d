"""The wait that a gRPC server asks for, read from the trailing metadata without the protobuf library.

`grpc-status-details-bin` holds a google.rpc.Status, whose details may hold a google.rpc.RetryInfo.
"""

from __future__ import annotations

from collections.abc import Iterator

_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def retry_info_seconds(status: bytes) -> float | None:
    """Give the delay of the first RetryInfo in a serialized google.rpc.Status; None where there is none."""
    try:
        for detail in _all(status, 3):
            if _first(detail, 1) == _RETRY_INFO:
                delay = _first(_first(detail, 2), 1)
                return _number(delay, 1) + _number(delay, 2) / 1e9
    except (IndexError, ValueError):
        return None
    return None


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value in _fields(message) if number == wanted and isinstance(value, bytes))


def _first(message: bytes, wanted: int) -> bytes:
    return next(_all(message, wanted), b"")


def _number(message: bytes, wanted: int) -> int:
    return next((value for number, value in _fields(message) if number == wanted and isinstance(value, int)), 0)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give number and value of each field; raises IndexError or ValueError on garbage."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            whole, at = _varint(message, at)
            yield key >> 3, whole
        elif kind == _BYTES:
            size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} is not one that protobuf uses")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a varint has at most 64 bits")
