"""Rules: what is compared, what decides, and what no rule may pick."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.race.evidence.ranking import DEFAULT_RULE, find_obstacle, parse_rule, pick_by_rule
from atoll.model.check import CheckResult, CheckSpec, CheckStatus, Figure
from atoll.model.errors import SpecError
from atoll.model.evidence import (
    CandidateEvidence,
    Cell,
    CellStatus,
    ChangedFile,
    ChangeFacts,
    CrossScore,
    Matrix,
    RaceEvidence,
)
from atoll.model.race import Candidate, CandidateSpec, CandidateState, Race, RaceSpec, RaceState

SPECS = (CheckSpec("test", "t"), CheckSpec("bench", "b", has_figures=True))
PASSED, FAILED = CheckStatus.PASSED, CheckStatus.FAILED


def result(spec: CheckSpec, tree: str, status: CheckStatus, figures: dict[str, float]) -> Any:
    measured = tuple(Figure(name, value, "s", "lower") for name, value in figures.items())
    return CheckResult(
        0, "p", tree, "c", spec.name, spec.digest, spec.command, status, 0.0, 1.0,
        figures=measured if spec.has_figures else (),
    )  # fmt: skip


def one(
    name: str,
    *,
    status: CheckStatus = PASSED,
    figures: dict[str, float] | None = None,
    lines: int = 10,
    base: CellStatus = CellStatus.PASSED,
    cross: tuple[int, int] = (1, 1),
    tree: str = "",
    **candidate: Any,
) -> CandidateEvidence:
    tree = tree or f"tree-{name}"
    checks = tuple(result(spec, tree, status, figures or {}) for spec in SPECS)
    measured = {f.name: f for check in checks for f in check.figures}
    fields: dict[str, Any] = {"state": CandidateState.DONE, "tree": tree, "commit": "c"}
    return CandidateEvidence(
        Candidate(1, 1, name, spec=CandidateSpec(), **{**fields, **candidate}),
        checks,
        measured,
        ChangeFacts((ChangedFile("a", "modified", lines, 0),)),
        CrossScore(*cross),
        Cell(base),
        0,
    )


def evidence(*candidates: CandidateEvidence, **spec: Any) -> RaceEvidence:
    race = Race(
        1, "p", "sums", RaceState.FINISHED, "b", None, 0.0, 0.0, RaceSpec("", (), SPECS, **spec)
    )
    made = RaceEvidence(race, "tree-of-base", (None, None), {}, candidates, Matrix())
    judged = tuple(c._replace(obstacle=find_obstacle(made, c)) for c in candidates)
    return made._replace(candidates=judged)


def test_earlier_criterion_decides() -> None:
    found = evidence(
        one("a", figures={"seconds": 2.0}, lines=1),
        one("b", figures={"seconds": 1.0}, lines=99),
        one("c", lines=0),
    )
    choice = pick_by_rule(found, "checks, seconds, diff")
    assert choice.ranking == ("b", "a", "c")
    assert choice.reason == "`seconds`: 1 s against 2 s of `a`"
    assert pick_by_rule(found, "bench:higher").winner == "a"
    assert pick_by_rule(found).ranking == ("c", "a", "b")
    assert pick_by_rule(found).rule == DEFAULT_RULE


def test_tie_goes_to_the_earlier_one() -> None:
    choice = pick_by_rule(evidence(one("b"), one("a")))
    assert choice.winner == "b"
    assert choice.reason == "by all criteria as good as `a`, and started before it"


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (one("x", status=FAILED), "the check `test`: failed"),
        (one("x", status=CheckStatus.FLAKY), "the check `test`: flaky"),
        (one("x", base=CellStatus.FAILED), "it fails the base's tests"),
        (one("x", base=CellStatus.FLAKY), "the base's tests are flaky on it"),
        (one("x", base=CellStatus.UNKNOWN), "the base's tests were not run on it"),
        (one("x", base=CellStatus.ERROR), "the base's tests could not be run on it"),
        (one("x", base=CellStatus.IMPOSSIBLE), "the base's tests cannot be run on it"),
        (one("x", tree="tree-of-base"), "it changes nothing"),
        (one("x", is_removed=True), "its capsule was removed"),
        (one("x", state=CandidateState.FAILED, reason="no"), "it is failed: no"),
        (one("x", state=CandidateState.CHECKING), "it is checking"),
    ],
)
def test_no_rule_picks(candidate: CandidateEvidence, reason: str) -> None:
    choice = pick_by_rule(evidence(candidate), "diff")
    assert choice.winner is None
    assert choice.rejected["x"].startswith(reason)
    assert pick_by_rule(evidence(candidate, one("y", lines=999)), "diff").winner == "y"


def test_without_checks_or_results_nothing_is_picked() -> None:
    found = evidence(one("a"))
    bare = found.race._replace(spec=found.race.spec._replace(checks=()))
    assert find_obstacle(found._replace(race=bare), one("a")) == "the race has no checks"
    unchecked = one("a")._replace(checks=(None, None))
    assert find_obstacle(found, unchecked) == "the check `test` was not run on it"


def test_base_that_fails_its_own_tests_rules_out_nobody() -> None:
    failing = one("a", base=CellStatus.FAILED)
    found = evidence(failing)._replace(matrix=Matrix(does_base_pass=False))
    assert find_obstacle(found, failing) == ""
    assert find_obstacle(evidence(failing, has_cross_tests=False), failing) == ""


def test_equal_trees_count_once() -> None:
    choice = pick_by_rule(evidence(one("a", tree="t"), one("b", tree="t"), one("c", lines=99)))
    assert choice.ranking == ("a", "c")
    assert choice.rejected == {"b": "it has the same tree as `a`"}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("speed", "unknown criterion `speed`"),
        ("diff:best", "after the colon"),
        ("checks:lower", "is a condition"),
        ("judge", "never decides alone"),
        (" , ", "is a list of criteria"),
        ("diff, diff:higher", "twice"),
        ("other", "has several figures: `x` or `y`"),
        ("x\x1b[2J", "unknown criterion"),
        ("a," * 600, "is a list of criteria"),
    ],
)
def test_mistakes_in_a_rule(rule: str, message: str) -> None:
    found = evidence(one("a", figures={"seconds": 1.0}))
    several = result(SPECS[1], "t", PASSED, {"x": 1.0, "y": 2.0})._replace(name="other")
    with pytest.raises(SpecError) as caught:
        parse_rule(rule, found._replace(base_checks=(several, None)))
    assert message in caught.value.message
    assert "\x1b" not in caught.value.message + str(caught.value.hint)


def test_figure_without_a_direction_needs_one() -> None:
    found = evidence(one("a", figures={"n": 1.0}))
    plain = Figure("n", 1.0)
    silent = found.candidates[0]._replace(figures={"n": plain})
    found = found._replace(candidates=(silent,))
    with pytest.raises(SpecError, match="whether a lower or a higher `n` is better"):
        parse_rule("n", found)
    assert parse_rule("n:higher", found)[0].better == "higher"


VALUES = st.one_of(st.none(), st.floats(allow_nan=True), st.integers(-5, 5).map(float))
RULES = st.permutations(["crosstests", "diff", "seconds", "files"]).map(", ".join)


@given(st.lists(st.tuples(VALUES, st.integers(0, 9), st.sampled_from([PASSED, FAILED]))), RULES)
def test_ranking_is_total_and_a_failed_check_never_wins(
    rows: list[tuple[float | None, int, CheckStatus]], rule: str
) -> None:
    found = evidence(*(
        one(
            f"c-{number}",
            figures={} if value is None else {"seconds": value},
            lines=lines,
            status=status,
        )
        for number, (value, lines, status) in enumerate(rows)
    ))  # fmt: skip
    rule = rule if found.figure_names else rule.replace("seconds", "time")
    choice = pick_by_rule(found, rule)
    passing = {f"c-{number}" for number, row in enumerate(rows) if row[2] is PASSED}
    assert set(choice.ranking) == passing
    assert choice.winner == (choice.ranking[0] if passing else None)
    assert choice.rejected.keys() | passing == {c.name for c in found.candidates}
    # The order does not depend on which candidates are compared.
    for name in choice.ranking[:1]:
        fewer = [c for c in found.candidates if c.name != name]
        rest = pick_by_rule(found._replace(candidates=tuple(fewer)), "diff")
        assert name not in rest.ranking
