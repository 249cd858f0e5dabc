"""The owner's judge: a command that ranks anonymous candidates, asked in both orders.

It gets no names, agents or costs. Only where both answers agree does it say anything; and it is one
criterion of a rule, after the checks and the tests of the base, never the decision alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from string import ascii_uppercase
from typing import Any

from atoll.engine.race.evidence.candidate_diffs import load_patch
from atoll.engine.state.session import Session
from atoll.host.process import Program, stream
from atoll.model.errors import DriverError
from atoll.model.evidence import CandidateEvidence, Judgement, RaceEvidence
from atoll.model.names import printable
from atoll.model.race import Race
from atoll.model.state import ProjectRecord

KIND = "judgement"
_TIMEOUT_S = 600.0
_OUTPUT_BYTES = 1 << 20
_DIFF_BYTES = 200_000
_TEXT_CHARACTERS = 20_000
_SHOWN = 200


def load_judgement(session: Session, race: Race) -> Judgement | None:
    stored = session.store.find_evidence(race.id, KIND)
    if stored is None:
        return None
    try:
        ranks = {str(tree): int(rank) for tree, rank in stored["ranks"].items()}
        undecided = tuple(map(str, stored["undecided"]))
        return Judgement(str(stored["command"]), float(stored["at"]), ranks, undecided)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Of another version: it is asked again.
        return None


def ensure_judgement(
    session: Session, project: ProjectRecord, evidence: RaceEvidence, command: str
) -> Judgement | None:
    """Asks the judge about the candidates that may be picked, unless it was asked about the same
    trees before; None if there are fewer than two.

    Raises DriverError if the command fails, or does not answer with a ranking.
    """
    found = {one.candidate.tree: one for one in reversed(evidence.candidates) if not one.obstacle}
    if len(found) < 2:
        return None
    former = evidence.judgement
    if former is not None and former.command == command and former.ranks.keys() == found.keys():
        return former
    judgement = ask(session, command, evidence, list(reversed(found.values())), project)
    session.store.save_evidence(evidence.race.id, KIND, judgement._asdict())
    return judgement


def ask(
    session: Session,
    command: str,
    evidence: RaceEvidence,
    candidates: Sequence[CandidateEvidence],
    project: ProjectRecord,
) -> Judgement:
    """Asks twice: in the order of the candidates, then in reverse under other letters."""
    described = {
        one.candidate.tree: _describe(evidence, one, project.git_dir) for one in candidates
    }
    trees = list(described)
    answers = []
    for order, letters in zip((trees, trees[::-1]), _letters(len(trees)), strict=True):
        named = dict(zip(letters, order, strict=True))
        question = {
            "task": evidence.race.spec.task[:_TEXT_CHARACTERS],
            "candidates": [{"name": key, **described[tree]} for key, tree in named.items()],
            "answer": "a JSON list of all names, the best first",
        }
        said = _run(command, json.dumps(question), project.root, session.owner)
        answers.append([named[letter] for letter in parse_answer(said, letters)])
    ranks, undecided = agree(*answers)
    return Judgement(command, time.time(), ranks, undecided)


def _letters(number: int) -> tuple[list[str], list[str]]:
    """Names for both orders; none is used in both."""
    names = islice(_alphabet(), 2 * number)
    every = list(names)
    return every[:number], every[number:]


def _alphabet() -> Iterator[str]:
    """A … Z, A2 … Z2 and so on."""
    for n in count(1):
        yield from (letter if n == 1 else f"{letter}{n}" for letter in ascii_uppercase)


def _describe(evidence: RaceEvidence, one: CandidateEvidence, repository: str) -> dict[str, Any]:
    """What the judge is told: nothing that identifies who made it."""
    patch = load_patch(repository, evidence.base_tree, one.candidate.tree, limit_bytes=_DIFF_BYTES)
    return {
        "diff": patch.text.decode(errors="replace"),
        "diff_is_complete": patch.is_complete,
        "lines_added": one.changes.added,
        "lines_deleted": one.changes.deleted,
        "checks": [
            {
                "name": result.name,
                "status": str(result.status),
                "tests_passed": None if result.tests is None else result.tests.passed,
                "tests_failed": None if result.tests is None else result.tests.failed,
            }
            for result in one.checks
            if result is not None
        ],
        "figures": {
            name: {"value": figure.value, "unit": figure.unit, "better": figure.better}
            for name, figure in one.figures.items()
        },
        "cross_tests": None if one.cross is None else {
            "passed": one.cross.passed, "ran": one.cross.ran,
        },
        "deleted_tests": one.changes.tests_gone,
        "skipped_tests": one.changes.skipped_tests,
    }  # fmt: skip


def _run(command: str, question: str, root: str, env: Mapping[str, str]) -> str:
    """Runs the judge on the host, with the environment of the owner, whose program it is."""
    said = bytearray()
    done = stream(
        Program(("sh", "-c", command), cwd=root, env=env, stdin=question.encode() + b"\n"),
        said.extend,
        limit_bytes=_OUTPUT_BYTES,
        timeout_s=_TIMEOUT_S,
    )
    if done.is_good:
        return bytes(said).decode(errors="replace")
    how = {
        "time": f"took more than {_TIMEOUT_S:.0f} s",
        "size": "printed too much",
    }.get(done.ended, f"exited with {done.completed.code}")
    errors = printable(done.completed.stderr[-_SHOWN:].decode(errors="replace").strip())
    raise DriverError(
        f"the judge `{printable(command)}` {how}" + (f": {errors}" if errors else ""),
        hint="run it by hand with a question on its standard input",
    )


def parse_answer(text: str, names: Sequence[str]) -> list[str]:
    """A JSON list, or a last line such as `B A C`, `B > A > C` or `BAC`, with every name once.

    Raises DriverError for anything else: half an answer is none.
    """
    found = _parse_list(text.strip())
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        found = _parse_list(last) or [word for word in re.split(r"[\s,;>]+", last) if word]
        if len(found) == 1 and len(names) > 1:
            found = list(found[0])
    if sorted(found) != sorted(names):
        shown = printable(text.strip()[-_SHOWN:])
        raise DriverError(
            f"the judge does not answer with a ranking of {', '.join(names)}: `{shown}`",
            hint='it has to print a JSON list, such as ["B", "A"]',
        )
    return found


def _parse_list(text: str) -> list[str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_words = isinstance(found, list) and all(isinstance(word, str) for word in found)
    return list(found) if is_words else None


def agree(one: Sequence[str], other: Sequence[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """The ranks on which two rankings agree, and what they contradict each other about.

    A rank is one more than the number of those that come before in both, so that those about which
    they disagree share one.
    """
    places: list[Mapping[str, int]] = [
        {name: place for place, name in enumerate(ranking_)} for ranking_ in (one, other)
    ]
    first, second = places
    ranks = {
        name: 1 + sum(first[o] < first[name] and second[o] < second[name] for o in one)
        for name in one
    }
    undecided = tuple(
        name
        for name in one
        if any((first[o] < first[name]) != (second[o] < second[name]) for o in one if o != name)
    )
    return ranks, undecided
