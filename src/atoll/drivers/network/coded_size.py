"""How long a body with a content coding is without it, at most. No I/O, and bounded memory.

What cannot be decoded here has no known size: zstandard is not decoded, but its frames say how many
blocks there are, and a block has a largest size.
"""

from __future__ import annotations

import zlib

_MOST_BYTES = 16 << 20
"""More than any model takes; counting further would only take time."""
_MOST_PARTS, _MOST_BLOCKS = 16, 1000
"""Many that are empty take time, too."""
_STEP_BYTES = 256 << 10
_ANY_HEADER = zlib.MAX_WBITS | 32
_ZSTD_FRAME, _ZSTD_SKIPPED = 0xFD2FB528, 0x184D2A5
_ZSTD_BLOCK_BYTES = 128 << 10
_RAW, _RUN, _COMPRESSED = 0, 1, 2
_CHECKSUM_BYTES = 4


def find_decoded_size(coding: str, data: bytes) -> int | None:
    """`coding` is the value of `Content-Encoding`. None when the size is not known: another coding,
    several of them, or bytes that do not have this one.
    """
    match coding.strip().lower():
        case "" | "identity":
            return len(data)
        case "gzip" | "x-gzip" | "deflate":
            return _inflated_size(data)
        case "zstd":
            return _zstd_size(data)
    return None


def _inflated_size(data: bytes) -> int | None:
    size = 0
    for _ in range(_MOST_PARTS):
        decoder = zlib.decompressobj(_ANY_HEADER)
        while not decoder.eof:
            try:
                piece = decoder.decompress(data, _STEP_BYTES)
            except zlib.error:
                return None
            size, data = size + len(piece), decoder.unconsumed_tail
            if size > _MOST_BYTES or not (piece or data or decoder.eof):
                return None
        # A file of gzip may have several members.
        data = decoder.unused_data
        if not data:
            return size
    return None


def _zstd_size(data: bytes) -> int | None:
    at = size = 0
    for _ in range(_MOST_PARTS):
        if at >= len(data):
            break
        magic = _number(data, at, 4)
        if magic >> 4 == _ZSTD_SKIPPED:
            at += 8 + _number(data, at + 4, 4)
            continue
        if magic != _ZSTD_FRAME or at + 4 >= len(data):
            return None
        at, has_checksum, declared = _read_frame_head(data, at + 4)
        at, most = _read_blocks(data, at)
        at += _CHECKSUM_BYTES * has_checksum
        # A decoder refuses a frame that has another size than it says.
        size += most if declared is None else declared
        if size > _MOST_BYTES:
            return None
    return size if at == len(data) else None


def _read_frame_head(data: bytes, at: int) -> tuple[int, bool, int | None]:
    """Where the blocks begin, whether a checksum follows them, and the size of the content."""
    flags = data[at]
    is_single = bool(flags & 0x20)
    at += 1 + (not is_single) + (0, 1, 2, 4)[flags & 3]
    width = (int(is_single), 2, 4, 8)[flags >> 6]
    declared = _number(data, at, width) + (256 if width == 2 else 0)
    return at + width, bool(flags & 4), declared if width else None


def _read_blocks(data: bytes, at: int) -> tuple[int, int]:
    """Where the blocks of a frame end, and the most that they contain."""
    most, is_last = 0, False
    for _ in range(_MOST_BLOCKS):
        if is_last or at + 3 > len(data):
            break
        head = _number(data, at, 3)
        is_last, kind, length = bool(head & 1), head >> 1 & 3, head >> 3
        most += _ZSTD_BLOCK_BYTES if kind == _COMPRESSED else length
        at += 3 + (1 if kind == _RUN else length)
    # Beyond the data unless the last block was there.
    return (at if is_last else len(data) + 1), most


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")
