"""Gathers what is known of the candidates of a race. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.engine.race.evidence import ranking, trees
from atoll.engine.race.evidence.change_facts import load_facts
from atoll.engine.race.evidence.cross_tests import find_results, load_matrix, test_checks
from atoll.engine.race.evidence.judging import load_judgement
from atoll.engine.state.session import Session
from atoll.model.check import CheckResult, CheckStatus
from atoll.model.errors import AtollError
from atoll.model.evidence import (
    CandidateEvidence,
    Cell,
    CellStatus,
    ChangeFacts,
    CrossScore,
    Judgement,
    Matrix,
    RaceEvidence,
    collect_figures,
    shared_figures,
)
from atoll.model.names import printable
from atoll.model.race import Candidate, CandidateState, Race
from atoll.model.state import ProjectRecord
from atoll.model.units import counted

_NAMED = 3


def gather(
    session: Session, project: ProjectRecord, race: Race, candidates: Sequence[Candidate]
) -> RaceEvidence:
    """The evidence, as far as there is any: a race that is under way can be compared."""
    repository = project.git_dir
    specs = race.spec.checks
    base_tree = trees.tree_of(race.base_commit, repository=repository)
    matrix = load_matrix(session, project, race, candidates)
    judgement = load_judgement(session, race)
    base_checks = find_results(session, project, base_tree, specs)
    checks = {one.name: find_results(session, project, one.tree, specs) for one in candidates}
    every = (base_checks, *checks.values())
    shared = shared_figures([r for results in every for r in results if r is not None])
    facts: dict[str, ChangeFacts] = {}
    for one in candidates:
        if one.tree and one.tree not in facts:
            facts[one.tree] = _load_facts(session, repository, base_tree, one)
    found = [
        CandidateEvidence(
            one,
            tuple(checks[one.name]),
            collect_figures(checks[one.name], shared),
            facts.get(one.tree, ChangeFacts()),
            score(matrix, one.tree),
            matrix.base_cell(one.tree),
            _more_warnings(checks[one.name], base_checks),
            tuple(o.name for o in candidates if o is not one and one.tree and o.tree == one.tree),
            judged=_rank(judgement, one.tree),
            is_undecided=judgement is not None and one.tree in judgement.undecided,
        )
        for one in candidates
    ]
    evidence = RaceEvidence(
        race,
        base_tree,
        tuple(base_checks),
        collect_figures(base_checks, shared),
        tuple(found),
        matrix,
        judgement,
    )
    judged = tuple(
        one._replace(obstacle=ranking.find_obstacle(evidence, one)) for one in evidence.candidates
    )
    return evidence._replace(candidates=judged, notes=tuple(_notes(evidence)))


def _load_facts(session: Session, repository: str, base_tree: str, one: Candidate) -> ChangeFacts:
    try:
        return load_facts(repository, base_tree, one.tree)
    except AtollError as error:
        # Its branch was deleted, and git has collected its commits.
        session.warn(f"the changes of `{one.name}` cannot be read: {error.message}")
        return ChangeFacts(is_complete=False)


def score(matrix: Matrix, tree: str) -> CrossScore | None:
    """How many suites pass on a tree; None if none was run there."""
    cells = [cell for row, cell in matrix.cells_of(tree) if row.counts and cell.is_observed]
    return CrossScore(sum(cell.is_good for cell in cells), len(cells)) if cells else None


def _more_warnings(
    results: Sequence[CheckResult | None], base: Sequence[CheckResult | None]
) -> int | None:
    pairs = list(zip(results, base, strict=True))
    if not pairs or any(one is None or other is None for one, other in pairs):
        return None
    return sum(max(0, one.warnings - other.warnings) for one, other in pairs if one and other)


def _rank(judgement: Judgement | None, tree: str) -> int | None:
    return None if judgement is None else judgement.ranks.get(tree)


def _notes(evidence: RaceEvidence) -> list[str]:
    """What stands out."""
    notes: list[str] = []
    matrix = evidence.matrix
    if matrix.does_base_pass is False:
        notes.append("the base fails its own tests, so they do not rule out a candidate")
    firsts = {one.candidate.tree or one.name: one for one in reversed(evidence.candidates)}
    for one in evidence.candidates:
        # Of equal trees, the first stands for all.
        if firsts[one.candidate.tree or one.name] is one:
            notes += _notes_on(evidence, one)
    for row in matrix.rows:
        observed = [cell for cell in row.cells if cell.is_observed]
        if observed and not row.counts:
            notes.append(
                f"no other candidate passes the tests of {_listed(row.names)}, which are therefore "
                "not counted"
            )
    seen = set()
    for one in evidence.candidates:
        if one.twins and one.candidate.tree not in seen:
            seen.add(one.candidate.tree)
            notes.append(f"{_listed((one.name, *one.twins))} ended with the same tree")
    judgement = evidence.judgement
    if judgement is not None and judgement.undecided:
        names = [o.name for o in evidence.candidates if o.candidate.tree in judgement.undecided]
        if names:
            notes.append(f"the judge contradicts itself about {_listed(names)}")
    return notes


def _notes_on(evidence: RaceEvidence, one: CandidateEvidence) -> list[str]:
    found: list[str] = []
    changes, name = one.changes, one.name
    if one.candidate.state is CandidateState.FAILED:
        why = f": {one.candidate.reason}" if one.candidate.reason else ""
        return [f"`{name}` failed{why}"]
    if one.candidate.tree == evidence.base_tree:
        return [f"`{name}` changes nothing"]
    flaky = [r.name for r in one.checks if r is not None and r.status is CheckStatus.FLAKY]
    if flaky:
        found.append(f"{_listed(flaky)} is flaky on `{name}`: it passed after it had failed")
    cell = one.base_tests
    if evidence.matrix.does_base_pass is not False:
        if cell.status is CellStatus.IMPOSSIBLE:
            found.append(f"the tests of the base cannot be run on `{name}`: {cell.reason}")
        elif cell.is_observed and not cell.is_good:
            tests = changes.changed_tests
            which = f" that it changed: {_listed(tests)}" if tests else ""
            found.append(f"`{name}` fails the tests of the base{which}")
        elif cell.is_good and (few := _fewer_tests(evidence, cell)):
            found.append(f"the tests of the base pass on `{name}`, but {few}")
    found += _notes_on_tests(one)
    if changes.risky:
        found.append(
            f"`{name}` changes files that can run code on your machine: {_listed(changes.risky)}"
        )
    if not changes.is_complete:
        found.append(f"`{name}` changes too many files to be listed")
    return found


def _fewer_tests(evidence: RaceEvidence, cell: Cell) -> str:
    """What the reports of tests say against a pass: code that ends the test runner with exit code 0
    leaves no report, or one with fewer tests.
    """
    checks = evidence.race.spec.checks
    tests = {spec.name for spec in test_checks(checks)}
    counts = [
        result.tests
        for spec, result in zip(checks, evidence.base_checks, strict=True)
        if spec.name in tests and result is not None and result.tests is not None
    ]
    ran, expected = cell.passed, sum(one.passed for one in counts)
    if ran >= expected:
        return ""
    return (
        f"only {counted(ran, 'test')} of {expected} passed in the report"
        if ran
        else (f"its report has none of the {counted(expected, 'test')} that pass on the base")
    )


def _notes_on_tests(one: CandidateEvidence) -> list[str]:
    changes, name, found = one.changes, one.name, []
    if changes.tests_gone:
        files = changes.deleted_test_files
        where = f", among them all of {_listed(files)}" if files else ""
        found.append(f"`{name}` deletes {counted(changes.tests_gone, 'test')}{where}")
    if changes.skipped_tests:
        found.append(f"`{name}` skips {counted(changes.skipped_tests, 'test')} more than the base")
    if changes.assertions_removed:
        number = counted(changes.assertions_removed, "assertion")
        found.append(f"`{name}` removes {number} from tests of the base")
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{printable(name)}`" for name in names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
