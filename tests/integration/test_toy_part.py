"""A part that is added in one file, this one: the engine creates, snapshots, rolls back, forks,
recovers after a crash, and removes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import atoll
from atoll.engine.capsule import parts, reaper
from atoll.engine.state.parts import Part
from atoll.host import files
from atoll.model.state import CapsuleRecord, CapsuleState, PartChange, Snapshot
from atoll.testing.faults import KILLED, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project
    from atoll.engine.state.session import Session
    from atoll.model.plan import CapsulePlan, Removal

CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import test_toy_part
test_toy_part.parts.register(test_toy_part.Counter())
from atoll.testing.faults import run_and_kill
run_and_kill(sys.argv[2], sys.argv[3:])
"""


class Counter(Part):
    """A directory with a number in a file, outside of the capsule's directory. The payload is the
    name of the directory, which starts with the capsule's id.
    """

    name = "counter"

    def create(
        self, session: Session, capsule: CapsuleRecord, plan: CapsulePlan, *, lock: int
    ) -> None:
        del plan, lock
        self.write(session, capsule, 0)

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        del busy
        current = session.store.part(capsule, self.name)
        value = self.read(session, current)
        return PartChange(self.make(session, capsule, value), current)

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        value = self.read(session, target.parts[self.name])
        return PartChange(
            session.store.part(capsule, self.name), self.make(session, capsule, value)
        )

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        del origin
        self.write(session, made, self.read(session, point.parts[self.name]))

    def remove(self, session: Session, capsule: CapsuleRecord, removal: Removal) -> None:
        del removal
        for path in self.places(session, capsule):
            files.remove_tree(path, within=session.home)

    def sweep(
        self, session: Session, capsule: CapsuleRecord, *, dry_run: bool = False
    ) -> list[str]:
        points = session.store.snapshots(capsule)
        used = {session.store.part(capsule, self.name), *(p.parts[self.name] for p in points)}
        unused = [path for path in self.places(session, capsule) if path.name not in used]
        for path in [] if dry_run else unused:
            files.remove_tree(path, within=session.home)
        return [str(path) for path in unused]

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        return {"value": str(self.read(session, session.store.part(capsule, self.name)))}

    def places(self, session: Session, capsule: CapsuleRecord) -> list[Path]:
        return sorted((session.home / "counters").glob(f"{capsule.id}-*"))

    def write(self, session: Session, capsule: CapsuleRecord, value: int) -> None:
        session.store.set_part(capsule, self.name, self.make(session, capsule, value))

    def make(self, session: Session, capsule: CapsuleRecord, value: int) -> str:
        place = session.home / "counters" / f"{capsule.id}-{os.urandom(6).hex()}"
        place.mkdir(parents=True)
        (place / "value").write_text(str(value))
        return place.name

    def read(self, session: Session, payload: str) -> int:
        return int((session.home / "counters" / payload / "value").read_text())


COUNTER = Counter()


@pytest.fixture
def project(repo: Path, atoll_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    monkeypatch.setattr(parts, "_parts", list(parts.registered()))
    parts.register(COUNTER)
    opened = atoll.open_project(repo)
    yield opened
    for capsule in opened.capsules():
        capsule.remove(force=True)
    assert counters(opened) == []
    opened.session.store.close()


def counters(project: Project) -> list[str]:
    return [path.name for path in (project.session.home / "counters").glob("*")]


def value(capsule: Capsule) -> int:
    return int(COUNTER.report(capsule.session, capsule.record)["value"])


def values(capsule: Capsule) -> list[int]:
    """Of its snapshots."""
    session = capsule.session
    return [COUNTER.read(session, point.parts["counter"]) for point in capsule.snapshots()]


def set_value(capsule: Capsule, number: int) -> None:
    COUNTER.write(capsule.session, capsule.record, number)
    COUNTER.sweep(capsule.session, capsule.record)


def test_part_follows_the_capsule(project: Project) -> None:
    x = project.new("x")
    assert value(x) == 0
    set_value(x, 1)
    first = x.snapshot("one")
    set_value(x, 2)
    fork = project.fork(x, "y", at=first)
    assert (value(fork), value(x)) == (1, 2)
    x.rollback(first)
    assert (value(x), values(x)) == (1, [1, 2])
    set_value(fork, 7)
    assert value(x) == 1
    fork.remove(force=True)
    assert (value(x), values(x)) == (1, [1, 2])
    x.remove(force=True)
    assert counters(project) == []


def test_part_of_a_capsule_that_fails_is_removed(project: Project) -> None:
    (Path(project.record.root) / "atoll.toml").write_text('[capsule]\nsetup = ["exit 3"]\n')
    project.trust()
    with pytest.raises(atoll.AtollError):
        project.new("x")
    assert counters(project) == []


def kill(project: Project, point: str, *argv: str) -> None:
    """Runs a command, with this part, in a process that is killed at `point`."""
    child = [sys.executable, "-c", CHILD, str(Path(__file__).parent), point, *argv]
    done = subprocess.run(
        child, cwd=project.record.root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == KILLED, f"{point}: {done.returncode}\n{done.stderr}"


def recover(project: Project) -> None:
    """What the next command and `gc` do; afterwards each counter belongs to something."""
    reaper.collect(project.session)
    store = project.session.store
    used = {store.part(capsule, "counter") for capsule in store.capsules()}
    used |= {point.parts["counter"] for point in store.snapshots()}
    assert set(counters(project)) == used
    assert all(capsule.state is CapsuleState.READY for capsule in store.capsules())


@pytest.mark.slow
@pytest.mark.parametrize("point", steps_of("new"))
def test_killed_new(project: Project, point: str) -> None:
    kill(project, point, "new", "x")
    recover(project)
    assert [value(capsule) for capsule in project.capsules()] in ([], [0])


@pytest.mark.slow
@pytest.mark.parametrize("point", steps_of("snapshot", "rollback", "fork", "rm"))
def test_killed_later(project: Project, point: str) -> None:
    x = project.new("x")
    set_value(x, 1)
    x.snapshot("one")
    set_value(x, 2)
    verb = point.partition(".")[0]
    rest = {"rollback": ("1",), "fork": ("y",), "rm": ("--force",)}.get(verb, ())
    kill(project, point, verb, "x", *rest)
    recover(project)
    found = {capsule.name: (value(capsule), values(capsule)) for capsule in project.capsules()}
    before = (2, [1])
    allowed = {
        "snapshot": [{"x": before}, {"x": (2, [1, 2])}],
        "rollback": [{"x": before}, {"x": (1, [1, 2])}],
        "rm": [{}],
    }
    if verb == "fork":
        # A fork of a living capsule takes a snapshot of it first.
        assert found.pop("x") in (before, (2, [1, 2]))
        assert found in ({}, {"y": (2, [])})
    else:
        assert found in allowed[verb]
