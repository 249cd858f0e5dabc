"""The sample project that ships with the package, and three attempts at its task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.engine.capsules import Capsule
from atoll.engine.projects import Project, open_project
from atoll.host import files, git

TEST = ("python3", "-m", "unittest", "discover", "-q", "-s", "tests")
_SAMPLES = Path(__file__).parents[1] / "samples"


class DemoAttempt(NamedTuple):
    """The observed result of one script in place of an agent."""

    capsule: Capsule
    changed: str
    passed: bool
    took_s: float


class Demo:
    """The sample project in a directory, with an Atoll home of its own beside it."""

    def __init__(self, place: Path) -> None:
        self.root = _make_sample(place)
        self.project = open_project(self.root, home=place / "home", background=False)
        self._before = self._checkout_state()
        self._committed: set[str] = set()

    def make_capsules(self) -> list[Capsule]:
        """One for each attempt."""
        return self.project.new_many(sorted(_attempts()))

    def attempt(self, capsules: Sequence[Capsule]) -> list[DemoAttempt]:
        """A different attempt in each capsule, all at the same time."""
        return Project.on_all(capsules, _attempt)

    @property
    def is_untouched(self) -> bool:
        """Whether the owner's checkout is as it was."""
        return self._checkout_state() == self._before

    def export_branch(self, attempt: DemoAttempt) -> tuple[str, str]:
        """Commits an attempt; returns its branch and the log of that branch."""
        capsule = attempt.capsule
        capsule.commit(f"shop: the {capsule.name} fix")
        self._committed.add(capsule.name)
        branch = str(capsule.record.branch)
        log = git.git("log", "--oneline", f"main..{branch}", "--", cwd=str(self.root))
        return branch, log.text.strip()

    def remove(self, capsules: Sequence[Capsule]) -> None:
        """Keeps the branches of committed attempts, and the others' work as recovery points."""
        for capsule in capsules:
            is_committed = capsule.name in self._committed
            capsule.remove(force=not is_committed, keep_branch=is_committed)

    def _checkout_state(self) -> str:
        head = git.find_commit("HEAD", cwd=str(self.root))
        status = git.git("status", "--porcelain", "--ignored", cwd=str(self.root))
        return f"{head} {status.text}"


def _attempt(capsule: Capsule) -> DemoAttempt:
    started = time.monotonic()
    # Through its input: no file of Atoll is visible in a sandbox.
    capsule.run(["python3", "-"], stdin=_attempts()[capsule.name].read_bytes())
    tests = capsule.run(TEST)
    summary = capsule.diff(stat=True).text.decode().strip().splitlines()
    return DemoAttempt(
        capsule=capsule,
        changed=summary[-1].strip() if summary else "nothing",
        passed=tests.outcome.good,
        took_s=time.monotonic() - started,
    )


def _make_sample(place: Path) -> Path:
    """Lays the sample out below `place` as a git repository with one commit."""
    root = place / "shop"
    for source in sorted((_SAMPLES / "shop").rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            target = root / source.relative_to(_SAMPLES / "shop")
            files.make_private_directory(target.parent)
            files.write_new(target, source.read_bytes())
    git.git("init", "--quiet", "--initial-branch=main", ".", cwd=str(root))
    # The user may not have configured a name for git.
    git.git("config", "user.name", "Atoll demo", cwd=str(root))
    git.git("config", "user.email", "demo@localhost", cwd=str(root))
    git.git("add", "--all", cwd=str(root))
    git.git("commit", "--quiet", "-m", "shop: the sample project", cwd=str(root))
    return root


def _attempts() -> dict[str, Path]:
    """Three scripts in place of agents, by name."""
    return {path.stem: path for path in sorted((_SAMPLES / "attempts").glob("*.py"))}
