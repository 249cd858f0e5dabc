"""Evidence: what was observed of the candidates of a race, each fact tied to a tree."""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import StrEnum
from typing import NamedTuple

from atoll.model.check import CheckResult, CheckStatus, Figure
from atoll.model.race import Candidate, Race

CRITERIA = (
    "checks", "crosstests", "skipped", "deleted", "warnings", "diff", "files", "time", "tokens",
    "cost", "judge",
)  # fmt: skip
"""What a rule may compare, besides figures."""
BASE = "base"
"""The name of what a race started from, beside those of its candidates."""


class CellStatus(StrEnum):
    """What came of the tests of one suite on the code of one tree."""

    PASSED = "passed"
    FLAKY = "flaky"
    FAILED = "failed"
    ERROR = "error"
    """The checks could not be run, or were ended by a limit."""
    IMPOSSIBLE = "impossible"
    """The tests cannot be combined with the code: a directory of one is a file of the other."""
    UNKNOWN = "unknown"
    """They were not run."""
    OWN = "own"
    """The code is that of the suite's author: its own checks cover it."""


class Cell(NamedTuple):
    status: CellStatus
    tree: str = ""
    """The code with the tests of the suite; empty if there is none."""
    passed: int = 0
    failed: int = 0
    """Tests, if a check writes a JUnit report."""
    reason: str = ""

    @property
    def is_good(self) -> bool:
        return self.status is CellStatus.PASSED

    @property
    def is_observed(self) -> bool:
        return self.status not in (CellStatus.UNKNOWN, CellStatus.OWN)


class Column(NamedTuple):
    """One tree, and the candidates that ended with it."""

    tree: str
    names: tuple[str, ...]


class SuiteRow(NamedTuple):
    """The tests of the base, or those of candidates that left the same ones."""

    names: tuple[str, ...]
    """Of the candidates; `BASE` for those of the base."""
    files: tuple[str, ...]
    """The test files that differ from the base's."""
    cells: tuple[Cell, ...]
    """In the order of the columns."""

    @property
    def is_base(self) -> bool:
        return self.names == (BASE,)

    @property
    def counts(self) -> bool:
        """Whether it says anything about a candidate. Tests that pass with the code of their author
        alone may use names that exist nowhere else.
        """
        return self.is_base or any(cell.is_good for cell in self.cells)


class Matrix(NamedTuple):
    """The tests of each candidate on the code of every other one."""

    columns: tuple[Column, ...] = ()
    rows: tuple[SuiteRow, ...] = ()
    """That of the base first."""
    does_base_pass: bool | None = None
    """Whether the base passes its own tests; None if that was not checked."""

    def cells_of(self, tree: str) -> list[tuple[SuiteRow, Cell]]:
        at = next((i for i, column in enumerate(self.columns) if column.tree == tree), None)
        return [] if at is None else [(row, row.cells[at]) for row in self.rows]

    def base_cell(self, tree: str) -> Cell:
        found = (cell for row, cell in self.cells_of(tree) if row.is_base)
        return next(found, Cell(CellStatus.UNKNOWN))


class CrossScore(NamedTuple):
    """How many suites of others, and of the base, pass on a tree; of those that count."""

    passed: int
    ran: int

    @property
    def failed(self) -> int:
        return self.ran - self.passed


class ChangedFile(NamedTuple):
    """A file in which a candidate differs from the base."""

    path: str
    status: str
    """`added`, `modified`, `deleted` or `type-changed`."""
    added: int
    deleted: int
    """Lines; 0 for binary files."""
    is_binary: bool = False


class ChangeFacts(NamedTuple):
    """What a tree changes of the base."""

    files: tuple[ChangedFile, ...] = ()
    changed_tests: tuple[str, ...] = ()
    """Files of tests of the base that it changed or deleted."""
    deleted_tests: int = 0
    """Tests that are gone, as far as their names are found."""
    deleted_test_files: tuple[str, ...] = ()
    skipped_tests: int = 0
    """More marks that skip a test than in the base."""
    assertions_removed: int = 0
    """Fewer assertions than in the base, in tests that are still there."""
    dependencies: tuple[str, ...] = ()
    """Files that declare dependencies."""
    locks: tuple[str, ...] = ()
    """Lock files of package managers."""
    risky: tuple[str, ...] = ()
    """Files that can run code on the owner's machine."""
    is_complete: bool = True
    """False if there are too many changed files to be listed; then nothing here is known."""

    @property
    def tests_gone(self) -> int:
        """Deleted tests; at least one for each deleted file of tests."""
        return max(self.deleted_tests, len(self.deleted_test_files))

    @property
    def added(self) -> int:
        return sum(file.added for file in self.files)

    @property
    def deleted(self) -> int:
        return sum(file.deleted for file in self.files)


class Judgement(NamedTuple):
    """What the owner's judge says, asked in both orders."""

    command: str
    at: float
    ranks: dict[str, int]
    """By tree, from 1: one more than the trees that come before it in both orders."""
    undecided: tuple[str, ...] = ()
    """Trees about which the two answers contradict each other."""


class CandidateEvidence(NamedTuple):
    """Everything that is known of one candidate."""

    candidate: Candidate
    checks: tuple[CheckResult | None, ...]
    """In the order of the race's checks; None where there is no result."""
    figures: dict[str, Figure]
    changes: ChangeFacts
    cross: CrossScore | None
    """None if no other suite was run on it."""
    base_tests: Cell
    warnings: int | None
    """Lines of output that warn, more than on the base; None if either is not known."""
    twins: tuple[str, ...] = ()
    """Other candidates with the same tree."""
    judged: int | None = None
    is_undecided: bool = False
    obstacle: str = ""
    """Why no rule may pick it; empty if one may."""

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def took_s(self) -> float | None:
        began, ended = self.candidate.started_at, self.candidate.ended_at
        return None if began is None or ended is None else max(0.0, ended - began)

    @property
    def lines(self) -> int:
        return self.changes.added + self.changes.deleted

    @property
    def status(self) -> CheckStatus | None:
        """The worst of its checks; None if one has no result, or if there are none."""
        return worst(self.checks)


class RaceEvidence(NamedTuple):
    """A race as `compare` shows it."""

    race: Race
    base_tree: str
    base_checks: tuple[CheckResult | None, ...]
    base_figures: dict[str, Figure]
    candidates: tuple[CandidateEvidence, ...]
    matrix: Matrix
    judgement: Judgement | None = None
    notes: tuple[str, ...] = ()

    def find(self, name: str) -> CandidateEvidence | None:
        return next((one for one in self.candidates if one.name == name), None)

    @property
    def figure_names(self) -> list[str]:
        """Of the candidates and the base, in the order in which they were first seen."""
        every = (self.base_figures, *(one.figures for one in self.candidates))
        return list(dict.fromkeys(name for figures in every for name in figures))

    def figures_of(self, check: str) -> list[str]:
        """The figures of the check with this name."""
        results = self.results
        shared = shared_figures(results)
        mine = [result for result in results if result.name == check]
        return list(dict.fromkeys(n for result in mine for n in collect_figures([result], shared)))

    @property
    def results(self) -> list[CheckResult]:
        """Of all checks, on the base and on the candidates."""
        every = (self.base_checks, *(one.checks for one in self.candidates))
        return [result for results in every for result in results if result is not None]

    def better(self, figure: str) -> str:
        """`lower` or `higher`, as its check says; empty if it does not, or says both."""
        every = (self.base_figures, *(one.figures for one in self.candidates))
        said = {found[figure].better for found in every if figure in found}
        return said.pop() if len(said) == 1 else ""


def shared_figures(results: Iterable[CheckResult]) -> set[str]:
    """The names that several checks give to a figure, or that mean something else in a rule."""
    named = {(figure.name, result.name) for result in results for figure in result.figures}
    names = [figure for figure, _ in named]
    return {name for name in names if names.count(name) > 1 or name in CRITERIA}


def collect_figures(
    results: Iterable[CheckResult | None], shared: Container[str]
) -> dict[str, Figure]:
    """The figures of the checks of one tree. The names in `shared` get that of their check."""
    return {
        f"{result.name}.{figure.name}" if figure.name in shared else figure.name: figure
        for result in results
        if result is not None
        for figure in result.figures
    }


_SEVERITY = (
    CheckStatus.PASSED, CheckStatus.FLAKY, CheckStatus.FAILED, CheckStatus.TIMEOUT,
    CheckStatus.ERROR,
)  # fmt: skip


def worst(results: Iterable[CheckResult | None]) -> CheckStatus | None:
    """The worst status of several checks; None if one has no result, or if there are none."""
    found = list(results)
    known = [result for result in found if result is not None]
    if not found or len(known) < len(found):
        return None
    return max((result.status for result in known), key=_SEVERITY.index)
