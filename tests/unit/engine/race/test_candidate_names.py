"""Names of candidates, prompts of a file, and how many candidates a machine carries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.race import capacity
from atoll.engine.race.candidate_specs import (
    MOST,
    RACE_NAME_LENGTH,
    Entrant,
    name_candidates,
    parse_prompts,
)
from atoll.engine.race.capacity import CandidateNeed, MachineCapacity
from atoll.model.errors import SpecError
from atoll.model.names import parse_name, slug
from atoll.model.race import CandidateSpec

LABELS = st.lists(st.text(max_size=50).map(slug), min_size=1, max_size=MOST)
RACES = st.from_regex(rf"[a-z0-9]([a-z0-9-]{{0,{RACE_NAME_LENGTH - 2}}}[a-z0-9])?", fullmatch=True)
GIB = 1 << 30


def names_of(race: str, *labels: str) -> list[str]:
    return name_candidates(race, [Entrant(label, CandidateSpec()) for label in labels])


@given(RACES, LABELS)
def test_names_are_different_and_usable(race: str, labels: list[str]) -> None:
    names = names_of(race, *labels)
    assert len(set(names)) == len(labels)
    for name in names:
        assert parse_name(name) == name
        assert name.startswith(f"{race}-")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["claude", "codex"], ["r-claude", "r-codex"]),
        (["claude", "claude", "codex"], ["r-claude-1", "r-claude-2", "r-codex"]),
        (["", ""], ["r-1", "r-2"]),
        ([""], ["r-1"]),
        (["1", "", "1-1", "1"], ["r-1-1", "r-1", "r-1-1-1", "r-1-2"]),
    ],
)
def test_names_say_what_differs(labels: list[str], names: list[str]) -> None:
    assert names_of("r", *labels) == names


def test_prompts_of_a_file() -> None:
    assert parse_prompts(b"one\n\n  two \n", "f") == ("one", "two")
    assert parse_prompts(b"one\nmore\n---\ntwo\n ---\n", "f") == ("one\nmore", "two")
    for text in (b"", b"\n \n", b"---\n---\n", b"\xff", b"x\0y", b"x\n" * 101):
        with pytest.raises(SpecError):
            parse_prompts(text, "f")


@pytest.mark.parametrize(
    ("need", "others", "most"),
    [
        (CandidateNeed(), 0, 4),
        (CandidateNeed(is_agent=True), 0, 8),
        (CandidateNeed(cpus=2.0), 0, 2),
        (CandidateNeed(memory_bytes=6 * GIB), 0, 2),
        (CandidateNeed(memory_bytes=60 * GIB), 0, 1),
        (CandidateNeed(), 3, 1),
        (CandidateNeed(), 30, 1),
    ],
)
def test_machine_carries_what_is_declared(need: CandidateNeed, others: int, most: int) -> None:
    assert capacity.find_most(MachineCapacity(4.0, 16 * GIB, 8 * GIB), need, others=others) == most


def test_first_candidate_starts_without_memory() -> None:
    full = MachineCapacity(4.0, 16 * GIB, 0)
    assert capacity.may_start(full, 0, 4)
    assert not capacity.may_start(full, 1, 4)
    assert not capacity.may_start(full._replace(available_bytes=GIB), 4, 4)
    assert 0 < capacity.find_machine().available_bytes <= capacity.find_machine().memory_bytes
