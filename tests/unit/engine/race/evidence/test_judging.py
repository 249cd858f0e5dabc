"""Answers of a judge: parsed strictly, and believed where two of them agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.race.evidence.judging import agree, parse_answer
from atoll.model.errors import DriverError


@pytest.mark.parametrize(
    "text",
    ['["B", "A", "C"]', "B A C", "I think:\nB > A > C\n", "B,A,C", "BAC", '{x}\n["B","A","C"]\n'],
)
def test_answer_is_read(text: str) -> None:
    assert parse_answer(text, ["A", "B", "C"]) == ["B", "A", "C"]


@pytest.mark.parametrize(
    "text", ["", "A B", "A B C D", "A A B", "[1, 2, 3]", '{"A": 1}', "the best is A", "[" * 99_999]
)
def test_half_an_answer_is_none(text: str) -> None:
    with pytest.raises(DriverError, match="does not answer with a ranking"):
        parse_answer(text, ["A", "B", "C"])


ORDERS = st.permutations(["a", "b", "c", "d"])


@given(ORDERS)
def test_equal_answers_are_a_ranking(order: list[str]) -> None:
    ranks, undecided = agree(order, order)
    assert sorted(ranks, key=lambda name: ranks[name]) == order
    assert not undecided


@given(ORDERS, ORDERS)
def test_rank_follows_from_what_both_say(one: list[str], other: list[str]) -> None:
    ranks, undecided = agree(one, other)
    for name in one:
        for worse in one[one.index(name) + 1 :]:
            if other.index(name) < other.index(worse):
                assert ranks[name] < ranks[worse]
            else:
                assert {name, worse} <= set(undecided)


def test_contradictions_share_a_rank() -> None:
    assert agree(["a", "b", "c"], ["b", "a", "c"]) == ({"a": 1, "b": 1, "c": 3}, ("a", "b"))
