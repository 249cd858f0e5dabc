"""Queries to a terminal are removed, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.keeper.terminal_queries import strip_queries

QUERIES = (
    b"\x05", b"\x1bZ",
    b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[>0c", b"\x1b[=c",
    b"\x1b[5n", b"\x1b[6n", b"\x1b[?6n", b"\x1b[?996n",
    b"\x1b[?2026$p", b"\x1b[4$p",
    b"\x1b[>q", b"\x1b[>0q",
    b"\x1b[?u",
    b"\x1b[?4m", b"\x1b[?1;1;0S",
    b"\x1b[14t", b"\x1b[18t", b"\x1b[21t", b"\x1b[14;2t",
    b"\x1b]10;?\x07", b"\x1b]11;?\x1b\\", b"\x1b]4;1;?\x07", b"\x1b]52;c;?\x07",
    b"\x1b]21;foreground=?\x1b\\", b"\x1b]99;i=1:p=?;\x1b\\", b"\x1b]1337;ReportCellSize\x07",
    b"\x1bP+q544e;636f\x1b\\", b"\x1bP$qm\x1b\\", b"\x1bP$q q\x1b\\",
    b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\", b"\x1b_Ga=q;AAAA\x1b\\",
)  # fmt: skip
SHOWN = (
    b"plain text, what? [6n [c", "é ▝▀".encode(),
    b"\x1b[0m", b"\x1b[38;5;12m", b"\x1b[>4;2m", b"\x1b[>4n",
    b"\x1b[2J", b"\x1b[H", b"\x1b[3;4H", b"\x1b[K", b"\x1b[5S", b"\x1b[2 q", b"\x1b[!p",
    b"\x1b[?1049h", b"\x1b[?2004h", b"\x1b[?25l", b"\x1b[>1u", b"\x1b[<u", b"\x1b[=1;1u",
    b"\x1b[s", b"\x1b[u", b"\x1b[22;0t", b"\x1b[23;0t", b"\x1b[8;30;100t", b"\x1b7", b"\x1b8",
    b"\x1b]0;what is it; ?\x07", b"\x1b]2;title\x1b\\", b"\x1b]8;;http://a/?q=?\x07",
    b"\x1b]11;rgb:00/00/00\x07", b"\x1b]52;c;aGVsbG8=\x07", b"\x1b]9;4;0\x07",
    b"\x1b_Ga=T,f=100;AAAA\x1b\\", b"\x1bP0;1q#0;2;0;0;0\x1b\\",
)  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_query_is_removed(query: bytes) -> None:
    assert strip_queries(b"before" + query + b"after") == b"beforeafter"


@given(st.lists(st.sampled_from(SHOWN)))
def test_everything_else_stays(pieces: list[bytes]) -> None:
    output = b"".join(pieces)
    assert strip_queries(output) == output


@given(st.lists(st.sampled_from((*SHOWN, *QUERIES))))
def test_queries_among_other_output(pieces: list[bytes]) -> None:
    assert strip_queries(b"".join(pieces)) == b"".join(p for p in pieces if p in SHOWN)
