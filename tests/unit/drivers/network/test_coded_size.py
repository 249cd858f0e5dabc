"""The size of a body without its content coding."""

from __future__ import annotations

import gzip
import subprocess
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.network.coded_size import find_decoded_size

TEXT = b"the conversation so far, again and again. " * 20_000
BLOCK = 128 << 10


def gzipped(data: bytes) -> bytes:
    """The same at every time, as the names of tests must be."""
    return gzip.compress(data, mtime=0)


def zstd_block(kind: int, size: int, data: bytes, *, is_last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + data


def zstd_frame(*blocks: bytes, flags: int = 0, more: bytes = b"\x50") -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes([flags]) + more + b"".join(blocks)


@pytest.mark.parametrize("text", [b"", b"x", TEXT])
def test_plain_gzip_and_deflate(text):
    members = gzipped(text[:100]) + gzipped(text[100:])
    for coding, data in (
        ("", text), ("identity", text), ("gzip", gzipped(text)), ("GZip ", members),
        ("deflate", zlib.compress(text)),
    ):  # fmt: skip
        assert find_decoded_size(coding, data) == len(text)


def test_blocks_of_zstd():
    raw, run = zstd_block(0, 5, b"hello"), zstd_block(1, 70_000, b"x")
    compressed = zstd_block(2, 3, b"???")
    last = zstd_block(0, 0, b"", is_last=True)
    assert find_decoded_size("zstd", zstd_frame(raw, run, last)) == 70_005
    most = find_decoded_size("zstd", zstd_frame(compressed, compressed, raw, last))
    assert most == 2 * BLOCK + 5
    checked = zstd_frame(raw, last, flags=4) + b"\0\0\0\0"
    skipped = b"\x51\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"1234567"
    assert find_decoded_size("zstd", skipped + checked + zstd_frame(raw, last)) == 10
    declared = zstd_frame(compressed, last, flags=0x60, more=(300 - 256).to_bytes(2, "little"))
    assert find_decoded_size("zstd", declared) == 300


def test_zstd_itself(require_tool, tmp_path):
    require_tool("zstd")
    (tmp_path / "x").write_bytes(TEXT)
    for argv in (["zstd", "-c", "x"], ["zstd", "-c"], ["zstd", "-c", "--no-check", "-19"]):
        with (tmp_path / "x").open("rb") as source:
            coded = subprocess.run(
                argv, cwd=tmp_path, stdin=source, capture_output=True, check=True
            ).stdout
        found = find_decoded_size("zstd", coded)
        assert found is not None
        assert len(TEXT) <= found <= len(TEXT) + BLOCK


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("br", b"x"),
        ("gzip, gzip", gzipped(gzipped(b"x"))),
        ("gzip", b""),
        ("gzip", TEXT),
        ("gzip", gzipped(TEXT)[:-9]),
        ("gzip", gzipped(bytes(20 << 20))),
        ("gzip", gzipped(b"") * 100_000),
        ("zstd", TEXT),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("zstd", zstd_frame(zstd_block(0, 5, b"hello"))),
        ("zstd", zstd_frame(zstd_block(0, 5, b"hel", is_last=True))),
        ("zstd", zstd_frame(zstd_block(1, 2_000_000, b"x") * 9)),
        ("zstd", zstd_frame(zstd_block(0, 0, b"") * 1_000_000)),
        ("zstd", b"\x50\x2a\x4d\x18\0\0\0\0" * 100_000),
    ],
)
def test_what_has_no_known_size(coding, data):
    assert find_decoded_size(coding, data) is None


@given(st.sampled_from(["gzip", "deflate", "zstd"]), st.binary(max_size=200))
def test_any_bytes_are_read(coding, data):
    for head in (b"", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"):
        found = find_decoded_size(coding, head + data)
        assert found is None or found >= 0
