"""Which candidate a rule picks, and why. Pure.

A rule names criteria in the order of their importance. Before any of them, a candidate has to have
passed every check and the base's tests: no rule picks one that has not.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from atoll.model.check import CheckStatus
from atoll.model.errors import SpecError
from atoll.model.evidence import CRITERIA, CandidateEvidence, CellStatus, RaceEvidence
from atoll.model.names import printable
from atoll.model.race import CandidateState
from atoll.model.units import counted, render_usd

DEFAULT_RULE = "checks, crosstests, skipped:lower, deleted:lower, diff:lower"
JUDGED_RULE = "checks, crosstests, skipped:lower, deleted:lower, judge, diff:lower"
"""The default for a race with a judge."""
JUDGE = "judge"
_GATE = "checks"
_POSITION = "position"
_RULE_LENGTH = 1000
LOWER, HIGHER = "lower", "higher"

_Observed = Callable[[CandidateEvidence], float | None]


def _counted(one: CandidateEvidence, number: int) -> int | None:
    """None where the changes were too many to be counted."""
    return number if one.changes.is_complete else None


_CRITERIA: Mapping[str, _Observed] = {
    "crosstests": lambda one: None if one.cross is None else one.cross.failed,
    "skipped": lambda one: _counted(one, one.changes.skipped_tests),
    "deleted": lambda one: _counted(one, one.changes.tests_gone),
    "warnings": lambda one: one.warnings,
    "diff": lambda one: _counted(one, one.lines),
    "files": lambda one: _counted(one, len(one.changes.files)),
    "time": lambda one: one.took_s,
    "tokens": lambda one: one.candidate.tokens or None,
    "cost": lambda one: one.candidate.cost_usd,
    JUDGE: lambda one: one.judged,
}
"""What is compared, and lower is better unless a rule says otherwise."""


class Criterion(NamedTuple):
    name: str
    better: str
    figure: str = ""
    """The figure that it compares; empty for one of Atoll's own."""

    def value_of(self, one: CandidateEvidence) -> float | None:
        """What was observed; None if nothing was."""
        if self.figure:
            found = one.figures.get(self.figure)
            value = None if found is None else found.value
        else:
            value = _CRITERIA[self.name](one)
        return value if value is not None and math.isfinite(value) else None

    def key_of(self, one: CandidateEvidence) -> tuple[int, float]:
        """Sorts the best first, and what was not observed last."""
        value = self.value_of(one)
        if value is None:
            return (1, 0.0)
        return (0, -value if self.better == HIGHER else value)

    def render(self, one: CandidateEvidence) -> str:
        """What was observed, for people."""
        value = self.value_of(one)
        if value is None:
            return "unknown"
        return _RENDERED.get(self.name, _plain)(one, value, self)


class Choice(NamedTuple):
    """What a rule says."""

    rule: str
    winner: str | None
    """None if no candidate may be picked."""
    reason: str = ""
    """Which criterion decided against the runner-up."""
    runner_up: str | None = None
    ranking: tuple[str, ...] = ()
    """Those that may be picked, the best first."""
    rejected: dict[str, str] = {}  # noqa: RUF012 - a tuple's default, never changed
    """Why each of the others may not be picked."""


def parse_rule(text: str, evidence: RaceEvidence) -> list[Criterion]:
    """Raises SpecError for a rule that has an unknown criterion, or that only asks the judge."""
    words = [word.strip() for word in text[: _RULE_LENGTH + 1].split(",")]
    words = [word for word in words if word]
    if len(text) > _RULE_LENGTH or not words:
        raise SpecError("a rule is a list of criteria", hint=f'--rule "{DEFAULT_RULE}"')
    found = [_parse_criterion(word, evidence) for word in words]
    criteria = [one for one in found if one is not None]
    if {one.name for one in criteria} == {JUDGE} and len(words) == 1:
        raise lone_judge()
    twice = [one.name for one in criteria if [c.name for c in criteria].count(one.name) > 1]
    if twice:
        raise SpecError(f"the rule names `{printable(twice[0])}` twice", hint="name it once")
    return criteria


def lone_judge() -> SpecError:
    """What is wrong with a rule that only asks the judge."""
    return SpecError("a judge never decides alone", hint=f'--rule "{JUDGED_RULE}"')


def _parse_criterion(word: str, evidence: RaceEvidence) -> Criterion | None:
    """None for `checks`, which is a condition and not compared."""
    name, colon, better = (part.strip() for part in word.rpartition(":"))
    if not colon:
        name, better = word, ""
    if colon and better not in (LOWER, HIGHER):
        raise SpecError(
            f"`{printable(word)}`: after the colon comes `{LOWER}` or `{HIGHER}`",
            hint=f"{printable(name)}:{LOWER}",
        )
    if name == _GATE:
        if better:
            raise SpecError(f"`{_GATE}` is a condition and has no direction", hint=_GATE)
        return None
    if name in _CRITERIA:
        return Criterion(name, better or LOWER)
    figure = _find_figure(name, evidence)
    better = better or evidence.better(figure)
    if not better:
        shown = printable(name)
        raise SpecError(
            f"the check does not say whether a lower or a higher `{shown}` is better",
            hint=f"{shown}:{LOWER}, or {shown}:{HIGHER}",
        )
    return Criterion(name, better, figure)


def _find_figure(name: str, evidence: RaceEvidence) -> str:
    """The figure with this name, or the only one of the check with this name."""
    figures = evidence.figure_names
    if name in figures:
        return name
    check, _, inner = name.rpartition(".")
    if inner in evidence.figures_of(check):
        return inner
    of_check = evidence.figures_of(name)
    if len(of_check) == 1:
        return of_check[0]
    known = [*CRITERIA, *figures]
    listed = ", ".join(f"`{printable(word)}`" for word in known)
    if of_check:
        several = " or ".join(f"`{printable(word)}`" for word in of_check)
        raise SpecError(
            f"the check `{printable(name)}` has several figures: {several}",
            hint=f"name one of them: --rule {shlex.quote(f'checks, {printable(of_check[0])}')}",
        )
    raise SpecError(f"unknown criterion `{printable(name)}`", hint=f"one of {listed}")


def pick_by_rule(evidence: RaceEvidence, rule: str = "") -> Choice:
    """The candidate that a rule picks; the default rule if it is empty. Raises SpecError."""
    text = rule.strip() or (DEFAULT_RULE if evidence.judgement is None else JUDGED_RULE)
    criteria = parse_rule(text, evidence)
    rejected: dict[str, str] = {}
    eligible: list[CandidateEvidence] = []
    trees: dict[str, str] = {}
    for one in evidence.candidates:
        reason = one.obstacle
        if not reason and one.candidate.tree in trees:
            reason = f"it has the same tree as `{trees[one.candidate.tree]}`"
        if reason:
            rejected[one.name] = reason
            continue
        trees[one.candidate.tree] = one.name
        eligible.append(one)
    # Stable: the earlier position wins a tie.
    ranked = sorted(eligible, key=lambda one: [criterion.key_of(one) for criterion in criteria])
    names = tuple(one.name for one in ranked)
    if not ranked:
        return Choice(text, None, "no candidate may be picked", rejected=rejected)
    runner_up = names[1] if len(names) > 1 else None
    return Choice(text, names[0], _explain(ranked, criteria), runner_up, names, rejected)


def find_obstacle(evidence: RaceEvidence, one: CandidateEvidence) -> str:
    """Why no rule may pick a candidate; empty if one may."""
    candidate = one.candidate
    if candidate.state is not CandidateState.DONE or not candidate.tree:
        why = f": {candidate.reason}" if candidate.reason else ""
        return f"it is {candidate.state}{why}"
    if candidate.is_removed:
        return "its capsule was removed"
    if candidate.tree == evidence.base_tree:
        return "it changes nothing"
    return _failed_checks(evidence, one) or _failed_base_tests(evidence, one)


def _failed_checks(evidence: RaceEvidence, one: CandidateEvidence) -> str:
    if not evidence.race.spec.checks:
        return "the race has no checks"
    for spec, result in zip(evidence.race.spec.checks, one.checks, strict=True):
        if result is None:
            return f"the check `{spec.name}` was not run on it"
        if result.status is not CheckStatus.PASSED:
            return f"the check `{spec.name}`: {result.status}"
    return ""


_BASE_TESTS = {
    CellStatus.UNKNOWN: "the base's tests were not run on it",
    CellStatus.IMPOSSIBLE: "the base's tests cannot be run on it",
    CellStatus.ERROR: "the base's tests could not be run on it",
    CellStatus.FLAKY: "the base's tests are flaky on it",
}


def _failed_base_tests(evidence: RaceEvidence, one: CandidateEvidence) -> str:
    if not evidence.race.spec.has_cross_tests or evidence.matrix.does_base_pass is False:
        return ""
    cell = one.base_tests
    if cell.status in _BASE_TESTS:
        why = f": {cell.reason}" if cell.reason and cell.status is not CellStatus.UNKNOWN else ""
        return _BASE_TESTS[cell.status] + why
    if cell.is_good:
        return ""
    tests = one.changes.changed_tests
    named = ", ".join(f"`{printable(path)}`" for path in tests[:3])
    more = f" and {len(tests) - 3} more" if len(tests) > 3 else ""
    changed = f", of which it changed {named}{more}" if tests else ""
    return f"it fails the base's tests{changed}"


def _explain(ranked: Sequence[CandidateEvidence], criteria: Sequence[Criterion]) -> str:
    """Why the first is before the second."""
    if len(ranked) == 1:
        return "the only one that passes the checks and the base's tests"
    best, other = ranked[0], ranked[1]
    for criterion in criteria:
        if criterion.key_of(best) != criterion.key_of(other):
            return (
                f"`{printable(criterion.name)}`: {criterion.render(best)} against "
                f"{criterion.render(other)} of `{other.name}`"
            )
    return f"by all criteria as good as `{other.name}`, and started before it"


_Rendered = Callable[[CandidateEvidence, float, Criterion], str]


def _plain(one: CandidateEvidence, value: float, criterion: Criterion) -> str:
    figure = one.figures.get(criterion.figure)
    unit = f" {printable(figure.unit)}" if figure is not None and figure.unit else ""
    return f"{value:.6g}{unit}"


def _nouns(noun: str) -> _Rendered:
    return lambda _one, value, _criterion: counted(int(value), noun)


_RENDERED: Mapping[str, _Rendered] = {
    "crosstests": lambda one, _value, _criterion: (
        "unknown" if one.cross is None else f"{one.cross.passed} of {one.cross.ran}"
    ),
    "skipped": _nouns("skipped test"),
    "deleted": _nouns("deleted test"),
    "warnings": _nouns("warning"),
    "diff": _nouns("line"),
    "files": _nouns("file"),
    "tokens": _nouns("token"),
    "time": lambda _one, value, _criterion: f"{value:.0f} s",
    "cost": lambda _one, value, _criterion: render_usd(value),
    JUDGE: lambda _one, value, _criterion: f"rank {value:.0f}",
}
