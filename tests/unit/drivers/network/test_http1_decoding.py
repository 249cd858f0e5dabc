"""Bodies without their transfer coding, however they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.network.http1 import Framing, HttpError
from atoll.drivers.network.http1_decoding import LAST_CHUNK, BodyDecoder, encode_chunk

CHUNKED = Framing(None, chunked=True)
PIECES = st.lists(st.binary(max_size=40), max_size=8)


def decoded(framing: Framing, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """The content, and what is left over, if the data arrives in pieces."""
    decoder, content, rest, at = BodyDecoder(framing), b"", b"", 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        rest += data[at:end]
        at = end
        taken, payload = decoder.feed(rest)
        content += payload
        rest = rest[taken:]
    assert decoder.is_over is not decoder.is_unbounded
    return content, rest


@given(PIECES, st.binary(max_size=9), st.lists(st.integers(0, 500), max_size=9))
def test_chunks(pieces, after, cuts):
    data = b"".join(map(encode_chunk, pieces)) + LAST_CHUNK
    assert decoded(CHUNKED, data + after, cuts) == (b"".join(pieces), after)


@given(st.binary(max_size=40), st.binary(max_size=9), st.lists(st.integers(0, 60), max_size=9))
def test_length(content, after, cuts):
    found = decoded(Framing(len(content)), content + after, cuts)
    assert found == (content, after)
    assert decoded(Framing(None), content, cuts) == (content, b"")


def test_extensions_and_trailers_are_dropped():
    data = b"3;x=y\r\nabc\r\n0\r\nX-End: 1\r\n\r\nnext"
    assert decoded(CHUNKED, data, [2, 8, 11]) == (b"abc", b"next")


@pytest.mark.parametrize("data", [b"2\r\nabc\r\n", b"-1\r\n", b"2\nab\n", b"0x2\r\nab\r\n"])
def test_malformed(data):
    with pytest.raises(HttpError):
        BodyDecoder(CHUNKED).feed(data)
