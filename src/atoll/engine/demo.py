"""The sample project that ships with the package, and a race of three attempts at its task.

The demo uses what users use. Each step returns what was observed, and what the demo promises of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from atoll.engine.enclosure import views
from atoll.engine.projects import open_project
from atoll.engine.promotion.promotions import PromotionReport
from atoll.engine.race.report import RaceStatus
from atoll.engine.race.results import Picked
from atoll.engine.run import runs
from atoll.host import files, git
from atoll.model.check import CheckStatus
from atoll.model.evidence import CandidateEvidence, CellStatus, RaceEvidence
from atoll.model.promotion import PromotionState
from atoll.model.race import CandidateState, RaceRequest

RACE = "mend"
FIGURE = "receipt_calls"
RULE = f"checks, crosstests, {FIGURE}:lower, diff:lower"
MESSAGE = "shop: ten pieces are bulk, and half a cent is rounded up"
_ATTEMPTS = ("cheating", "fast", "slow")
_COMMAND = ("sh", "-c", "exec python3 attempts/$ATTEMPT.py")
_CHEATING, _FAST, _SLOW = (f"{RACE}-{name}" for name in _ATTEMPTS)
_FACTOR = 10
"""How many times as much work the slow attempt is at least. Calls are counted: no clock is used."""
_BRANCH = "refs/heads/main"
_EDIT = "\nThe owner is in the middle of writing this line.\n"
_SAMPLES = Path(__file__).parents[1] / "samples"


class Promise(NamedTuple):
    """Something that the demo promises, and whether it was observed."""

    text: str
    is_kept: bool


class Demo:
    """The sample project in a directory, with an Atoll home of its own beside it."""

    def __init__(self, place: Path) -> None:
        self._started = time.monotonic()
        self.root = _make_sample(place)
        self.home = place / "home"
        self.project = open_project(self.root, home=self.home, background=False)
        self.project.trust()
        self._repository = str(self.root / ".git")
        self._base = self._head()
        readme = self.root / "README.md"
        with readme.open("a", encoding="utf-8") as stream:
            stream.write(_EDIT)
        self._edited = readme.read_bytes()
        self.promises: list[Promise] = []

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_as_promised(self) -> bool:
        return all(promise.is_kept for promise in self.promises)

    @property
    def command(self) -> str:
        """The race as a user would type it."""
        vary = f"--vary ATTEMPT={','.join(_ATTEMPTS)}"
        return f"atoll race --name {RACE} {vary} -- sh -c '{_COMMAND[-1]}'"

    def race(self, on_progress: Callable[[RaceStatus], None] | None = None) -> RaceStatus:
        """Three scripts in place of agents, each in a capsule, at the same time; then the checks
        on what each has left, and the tests of each on the code of the others.
        """
        request = RaceRequest(
            argv=_COMMAND, vary=(f"ATTEMPT={','.join(_ATTEMPTS)}",), name=RACE, rule=RULE
        )
        handle = self.project.races.start(request)
        status = handle.carry_on(on_progress)
        done = [one for one in status.candidates if one.candidate.state is CandidateState.DONE]
        self._promise("every attempt has left a tree", len(done) == len(_ATTEMPTS))
        checks = status.race.spec.checks
        self._promise(
            "all three pass their own checks", all(one.passes(checks) for one in status.candidates)
        )
        self._promise_untouched("the race", self._base)
        return status

    def compare(self) -> RaceEvidence:
        evidence = self.project.races.require(RACE).results.compare()
        fast, slow, cheating = (evidence.find(name) for name in (_FAST, _SLOW, _CHEATING))
        self._promise(
            f"`{_CHEATING}` changed a test, and fails the test as it was", _is_caught(cheating)
        )
        self._promise(
            f"`{_FAST}` and `{_SLOW}` pass the tests of the base and those of each other",
            all(one is not None and _is_confirmed(one) for one in (fast, slow)),
        )
        counts = [None if one is None else one.figures.get(FIGURE) for one in (fast, slow)]
        known = [figure.value for figure in counts if figure is not None]
        self._promise(
            f"`{_SLOW}` takes more than {_FACTOR} times the function calls of `{_FAST}`",
            len(known) == 2 and known[1] > _FACTOR * known[0] > 0,
        )
        return evidence

    def pick(self) -> Picked:
        """The winner by the rule of the race."""
        picked = self.project.races.require(RACE).results.pick()
        self._promise(f"the rule picks `{_FAST}`", picked.choice.winner == _FAST)
        return picked

    def promote(self, name: str) -> PromotionReport:
        """Verifies a candidate once more, and brings it to the owner's branch."""
        capsule = self.project.capsule(name)
        report = self.project.promotions.promote(capsule.record, message=MESSAGE)
        evidence = self.project.races.require(RACE).results.require(name)
        landed = git.git("rev-parse", f"{_BRANCH}^{{tree}}", cwd=self._repository).text.strip()
        self._promise(
            "what landed on `main` is exactly the tree that was checked",
            report.has_passed and landed == evidence.tree and self._is_proven(report, landed),
        )
        self._promise("the owner's uncommitted line is still there", self._is_edit_kept())
        return report

    @staticmethod
    def _is_proven(report: PromotionReport, tree: str) -> bool:
        passed = [one for one in report.results if one.status is CheckStatus.PASSED]
        return bool(passed) and all(one.tree == tree for one in report.results)

    def undo(self) -> PromotionReport:
        report = self.project.promotions.undo()
        self._promise("the promotion is undone", report.promotion.state is PromotionState.UNDONE)
        self._promise_untouched("the undo", self._base)
        return report

    def close(self, *, keep: bool) -> None:
        """Ends what it has started. Without `keep` the race and its capsules are removed."""
        session = self.project.session
        if not keep:
            for handle in self.project.races.all():
                handle.remove(force=True)
            for capsule in self.project.capsules():
                capsule.remove(force=True)
        for record in session.store.capsules():
            runs.stop_all(session, record)
            views.end_view(session, record)
        session.forkserver.close()
        session.store.close()

    def _promise(self, text: str, is_kept: bool) -> None:  # noqa: FBT001 - reads as a sentence
        self.promises.append(Promise(text, is_kept))

    def _promise_untouched(self, after: str, head: str) -> None:
        """Nothing in the owner's checkout has changed, besides what the owner has changed."""
        status = git.git("status", "--porcelain", "--ignored", "-z", cwd=str(self.root)).text
        is_same = self._head() == head and status == " M README.md\0"
        self._promise(
            f"after {after} the owner's checkout is as it was", is_same and self._is_edit_kept()
        )

    def _is_edit_kept(self) -> bool:
        return (self.root / "README.md").read_bytes() == self._edited

    def _head(self) -> str:
        return str(git.find_commit("HEAD", cwd=str(self.root)))


def _is_caught(one: CandidateEvidence | None) -> bool:
    """Whether its own checks say yes and the tests that it changed say no."""
    if one is None:
        return False
    is_good = one.status is CheckStatus.PASSED
    is_weaker = one.base_tests.status is CellStatus.FAILED
    return is_good and is_weaker and bool(one.changes.changed_tests)


def _is_confirmed(one: CandidateEvidence) -> bool:
    is_good = one.base_tests.status is CellStatus.PASSED
    return is_good and one.cross is not None and one.cross.failed == 0


def _make_sample(place: Path) -> Path:
    """Lays the sample out below `place` as a git repository with one commit."""
    root = place / "shop"
    for source in (_SAMPLES / "shop", _SAMPLES / "attempts"):
        target = root if source.name == "shop" else root / source.name
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = target / path.relative_to(source)
                files.make_private_directory(copy.parent)
                files.write_new(copy, path.read_bytes())
    git.git("init", "--quiet", "--initial-branch=main", ".", cwd=str(root))
    # The user may not have configured a name for git.
    git.git("config", "user.name", "Atoll demo", cwd=str(root))
    git.git("config", "user.email", "demo@localhost", cwd=str(root))
    git.git("add", "--all", cwd=str(root))
    git.git("commit", "--quiet", "-m", "shop: the sample project", cwd=str(root))
    return root
