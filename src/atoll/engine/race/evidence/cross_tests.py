"""The cross-test matrix of a race: the tests of each candidate on the code of every other one.

Its most important row are the base's own tests, on every candidate: a candidate that has weakened,
skipped or deleted tests fails those. Which tree stands for which cell is stored with the race, and
what came of it as the checks of that tree; so a second call only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from atoll.engine.check.checks import Checker, CheckTarget
from atoll.engine.race.evidence import trees
from atoll.engine.race.evidence.change_facts import is_suite_path
from atoll.engine.race.evidence.suites import Suite, TreeFile, base_suite, overlay, suite_of
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.check import CheckResult, CheckSpec, CheckStatus
from atoll.model.errors import DriverError
from atoll.model.evidence import BASE, Cell, CellStatus, Column, Matrix, SuiteRow, worst
from atoll.model.names import printable
from atoll.model.race import Candidate, Race
from atoll.model.state import ProjectRecord

KIND = "matrix"
_MOST_AT_ONCE = 16
"""Threads that wait for checks; the checker decides how many run."""
_STEP_S = 0.2

OnProgress = Callable[[int, int], None]
"""Called with the number of trees that have been checked, and of all."""


class _Combined(NamedTuple):
    """The tests of one suite on the code of one tree."""

    suite: str
    """The key of the suite; `BASE` for that of the base."""
    code: str
    """The tree of the candidate."""
    tree: str = ""
    """Both together; empty if they cannot be combined."""
    commit: str = ""
    reason: str = ""


class _StoredSuite(NamedTuple):
    key: str
    authors: tuple[str, ...]
    """Trees; none for the suite of the base."""
    files: tuple[str, ...]


class _Plan(NamedTuple):
    base_tree: str
    suites: tuple[_StoredSuite, ...]
    pairs: tuple[_Combined, ...]

    def encode(self) -> dict[str, object]:
        return self._asdict()

    @classmethod
    def parse(cls, stored: Mapping[str, object] | None) -> _Plan | None:
        """None if nothing is stored, or by another version."""
        try:
            found = dict(stored or {})
            suites: Iterable[tuple[str, list[str], list[str]]] = found["suites"]  # type: ignore[assignment]
            pairs: Iterable[list[str]] = found["pairs"]  # type: ignore[assignment]
            return cls(
                str(found["base_tree"]),
                tuple(_StoredSuite(key, tuple(by), tuple(files)) for key, by, files in suites),
                tuple(_Combined(*pair) for pair in pairs),
            )
        except (KeyError, TypeError, ValueError):
            return None


def test_checks(specs: Sequence[CheckSpec]) -> list[CheckSpec]:
    """The checks that are tests: those without figures, or all if all have some."""
    return [spec for spec in specs if not spec.has_figures] or list(specs)


def run_cross_tests(
    session: Session,
    project: ProjectRecord,
    race: Race,
    candidates: Sequence[Candidate],
    checker: Checker,
    on_progress: OnProgress | None = None,
) -> None:
    """Checks the base, the tests of the base on every candidate that left a tree, and, unless the
    race has no cross-tests, the tests of every candidate that passes its own on all others.

    May be repeated: what is stored is not checked again. A tree that cannot be checked is left out
    with a warning. Raises what `Checker.check` raises for all trees alike.
    """
    if not race.spec.checks:
        return
    every = [one for one in candidates if one.tree and one.commit]
    base_tree = trees.tree_of(race.base_commit, repository=project.git_dir)
    targets = {base_tree: (CheckTarget(
        race.base_commit, base_tree, race.base_commit, race.spec.level, race.spec.network
    ), list(race.spec.checks))}  # fmt: skip
    if race.spec.has_cross_tests:
        plan = _Composer(session, project, race).plan(every, base_tree)
        session.store.save_evidence(race.id, KIND, plan.encode())
        tests = test_checks(race.spec.checks)
        for pair in plan.pairs:
            if pair.tree and pair.tree not in targets:
                target = CheckTarget(
                    pair.commit, pair.tree, race.base_commit, race.spec.level, race.spec.network
                )
                targets[pair.tree] = (target, tests)
    _check_all(session, checker, list(targets.values()), on_progress or _silent)


def _silent(done: int, total: int) -> None:
    del done, total


def _check_all(
    session: Session,
    checker: Checker,
    wanted: Sequence[tuple[CheckTarget, list[CheckSpec]]],
    on_progress: OnProgress,
) -> None:
    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait  # noqa: PLC0415

    on_progress(0, len(wanted))
    with ThreadPoolExecutor(max_workers=_MOST_AT_ONCE) as pool:
        futures = {pool.submit(checker.check, target, specs): target for target, specs in wanted}
        waiting = set(futures)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_STEP_S, return_when=FIRST_COMPLETED)
                for future in done:
                    try:
                        future.result()
                    except DriverError as error:
                        tree = futures[future].tree[:10]
                        session.warn(f"the tree {tree} was not checked: {error.message}")
                if done:
                    on_progress(len(wanted) - len(waiting), len(wanted))
        except BaseException:
            checker.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _Composer:
    """Composes the trees of the matrix. Those of an earlier call are used again."""

    def __init__(self, session: Session, project: ProjectRecord, race: Race) -> None:
        self._session = session
        self._race = race
        self._project = project
        self._repository = project.git_dir
        former = _Plan.parse(session.store.find_evidence(race.id, KIND))
        pairs = () if former is None else former.pairs
        self._known = {(pair.suite, pair.code): pair for pair in pairs}

    def plan(self, candidates: Sequence[Candidate], base_tree: str) -> _Plan:
        codes = {one.tree: one.commit for one in reversed(candidates)}
        listings = {tree: self._listing(tree) for tree in codes}
        base = base_suite(self._listing(base_tree), is_suite_path)
        suites = {BASE: base}
        authors: dict[str, list[str]] = {BASE: []}
        for one in candidates:
            own = suite_of(base, listings[one.tree], is_suite_path)
            if own.changed:
                suites.setdefault(own.key, own)
                by = authors.setdefault(own.key, [])
                by += [] if one.tree in by else [one.tree]
        passing = {tree for tree in codes if self._passes_own(tree)}
        pairs = [
            self._pair(key, suite, tree, codes[tree], listings[tree])
            for key, suite in suites.items()
            for tree in codes
            # Others are not measured by tests that fail with the code of their author.
            if key == BASE or (tree not in authors[key] and not passing.isdisjoint(authors[key]))
        ]
        stored = [_StoredSuite(key, tuple(authors[key]), suites[key].changed) for key in suites]
        return _Plan(base_tree, tuple(stored), tuple(pairs))

    def _listing(self, tree: str) -> dict[str, TreeFile]:
        return trees.load_listing(tree, repository=self._repository)

    def _passes_own(self, tree: str) -> bool:
        tests = test_checks(self._race.spec.checks)
        results = find_results(self._session, self._project, tree, tests)
        return worst(results) is CheckStatus.PASSED

    def _pair(
        self, key: str, suite: Suite, code: str, commit: str, listing: Mapping[str, TreeFile]
    ) -> _Combined:
        known = self._known.get((key, code))
        if known is not None and self._exists(known):
            return known
        found = overlay(listing, suite, is_suite_path)
        if found.obstacle:
            return _Combined(key, code, reason=f"`{printable(found.obstacle)}` cannot exist in it")
        try:
            tree = trees.write_tree(self._session, code, found.changes, repository=self._repository)
            made = commit if tree == code else self._commit(tree)
            trees.keep(self._race, made, repository=self._repository)
        except DriverError as error:
            return _Combined(key, code, reason=printable(error.message[-300:]))
        return _Combined(key, code, tree, made)

    def _exists(self, pair: _Combined) -> bool:
        return bool(pair.tree) and git.find_commit(pair.commit, cwd=self._repository) is not None

    def _commit(self, tree: str) -> str:
        return trees.write_commit(
            tree,
            "The tests of one candidate on the code of another",
            parent=self._race.base_commit,
            at=self._race.created_at,
            repository=self._repository,
        )


def find_results(
    session: Session, project: ProjectRecord, tree: str, specs: Sequence[CheckSpec]
) -> list[CheckResult | None]:
    """What is stored of checks on a tree, in the order of `specs`."""
    store = session.store
    if not tree:
        return [None for _ in specs]
    found = [store.find_check_result(project.id, tree, spec.digest) for spec in specs]
    return [
        None if result is None else result._replace(name=spec.name, is_known=True)
        for spec, result in zip(specs, found, strict=True)
    ]


def load_matrix(
    session: Session, project: ProjectRecord, race: Race, candidates: Sequence[Candidate]
) -> Matrix:
    """The matrix as far as it is known; empty if there are no cross-tests."""
    plan = _Plan.parse(session.store.find_evidence(race.id, KIND))
    if plan is None:
        return Matrix()
    columns: dict[str, list[str]] = {}
    for one in candidates:
        if one.tree:
            columns.setdefault(one.tree, []).append(one.name)
    tests = test_checks(race.spec.checks)
    pairs = {(pair.suite, pair.code): pair for pair in plan.pairs}
    rows = []
    for suite in plan.suites:
        names = [name for tree in suite.authors for name in columns.get(tree, ())]
        if suite.key != BASE and not names:
            # Its author has gone on since.
            continue
        cells = tuple(
            Cell(CellStatus.OWN, tree)
            if tree in suite.authors
            else _cell(session, project, pairs.get((suite.key, tree)), tests)
            for tree in columns
        )
        rows.append(SuiteRow(tuple(names) or (BASE,), suite.files, cells))
    base = worst(find_results(session, project, plan.base_tree, tests))
    return Matrix(
        tuple(Column(tree, tuple(names)) for tree, names in columns.items()),
        tuple(rows),
        None if base is None else base is CheckStatus.PASSED,
    )


def _cell(
    session: Session,
    project: ProjectRecord,
    pair: _Combined | None,
    tests: Sequence[CheckSpec],
) -> Cell:
    if pair is None:
        return Cell(CellStatus.UNKNOWN, reason="not run")
    if not pair.tree:
        return Cell(CellStatus.IMPOSSIBLE, reason=pair.reason)
    results = find_results(session, project, pair.tree, tests)
    known = [result for result in results if result is not None]
    status = worst(results)
    if status is None:
        return Cell(CellStatus.UNKNOWN, pair.tree, reason="not run")
    counted = [result.tests for result in known if result.tests is not None]
    bad = next((result for result in known if not result.passed), None)
    return Cell(
        _CELLS[status],
        pair.tree,
        sum(counts.passed for counts in counted),
        sum(counts.failed for counts in counted),
        "" if bad is None else f"{bad.name}: {bad.message}" if bad.message else bad.name,
    )


_CELLS = {
    CheckStatus.PASSED: CellStatus.PASSED,
    CheckStatus.FLAKY: CellStatus.FLAKY,
    CheckStatus.FAILED: CellStatus.FAILED,
    CheckStatus.TIMEOUT: CellStatus.FAILED,
    CheckStatus.ERROR: CellStatus.ERROR,
}
