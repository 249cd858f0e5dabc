"""A part that is added in one file, this one: the engine leases, creates, snapshots, rolls back,
forks, recovers after a crash, reports and removes it. Every method of the contract is called.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import atoll
from atoll.engine.capsule import parts, reaper
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.parts import Part
from atoll.host import files
from atoll.model.state import CapsuleRecord, CapsuleState, PartChange, Snapshot
from atoll.testing.faults import KILLED, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project
    from atoll.engine.state.session import Session
    from atoll.model.enclosure import Enclosure
    from atoll.model.plan import CapsulePlan, Removal
    from atoll.model.state import Run

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
    name of the directory, which starts with the capsule's name.

    A run of the capsule may take as many minutes as the number that the capsule was forked with.
    """

    name = "counter"

    def __init__(self) -> None:
        self.called: list[str] = []
        """The methods of the contract that the engine has called."""
        self.is_quiet = False

    def __getattribute__(self, name: str) -> Any:
        if name in CONTRACT:
            self.called.append(name)
        return super().__getattribute__(name)

    def plan_fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, plan: CapsulePlan
    ) -> CapsulePlan:
        del origin
        return plan._replace(time_limit_s=60.0 * self.read(session, point.parts[self.name]))

    def lease(self, plan: CapsulePlan) -> str:
        return f"{plan.name}-first"

    def create(
        self, session: Session, capsule: CapsuleRecord, plan: CapsulePlan, *, lock: int
    ) -> None:
        del plan, lock
        leased = session.store.part(capsule, self.name)
        assert leased == f"{capsule.name}-first", "stored before anything is made"
        self.make(session, leased, 0)

    @contextmanager
    def quiesce(self, session: Session, capsule: CapsuleRecord) -> Iterator[None]:
        self.is_quiet = True
        yield
        self.is_quiet = False
        newest = session.store.snapshots(capsule)[-1]
        assert newest.parts[self.name], "until the payloads are stored"

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        del busy
        assert self.is_quiet
        current = session.store.part(capsule, self.name)
        value = self.read(session, current)
        return PartChange(self.make(session, self.new_name(capsule), value), current)

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        assert self.is_quiet
        value = self.read(session, target.parts[self.name])
        return PartChange(
            session.store.part(capsule, self.name),
            self.make(session, self.new_name(capsule), value),
        )

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        del origin
        leased = session.store.part(made, self.name)
        self.make(session, leased, self.read(session, point.parts[self.name]))

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

    def has_changed(self, session: Session, capsule: CapsuleRecord) -> bool:
        points = session.store.snapshots(capsule)
        last = self.read(session, points[-1].parts[self.name]) if points else 0
        return self.read(session, session.store.part(capsule, self.name)) != last

    def warnings(self, session: Session, capsule: CapsuleRecord) -> Sequence[str]:
        value = self.read(session, session.store.part(capsule, self.name))
        return [f"the counter of {capsule.name} is {value}"] if value > 99 else []

    def variables(
        self, session: Session, capsule: CapsuleRecord, inside: Enclosure
    ) -> Mapping[str, str]:
        del inside
        value = self.read(session, session.store.part(capsule, self.name))
        return {"ATOLL_COUNTER": str(value)}

    def end_run(self, session: Session, capsule: CapsuleRecord, run: Run) -> None:
        self.write(session, capsule, run.number)

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        return {"value": str(self.read(session, session.store.part(capsule, self.name)))}

    def places(self, session: Session, capsule: CapsuleRecord) -> list[Path]:
        return sorted((session.home / "counters").glob(f"{capsule.name}-*"))

    def write(self, session: Session, capsule: CapsuleRecord, value: int) -> None:
        made = self.make(session, self.new_name(capsule), value)
        session.store.set_part(capsule, self.name, made)

    def new_name(self, capsule: CapsuleRecord) -> str:
        return f"{capsule.name}-{os.urandom(6).hex()}"

    def make(self, session: Session, name: str, value: int) -> str:
        place = session.home / "counters" / name
        place.mkdir(parents=True)
        (place / "value").write_text(str(value))
        return name

    def read(self, session: Session, payload: str) -> int:
        return int((session.home / "counters" / payload / "value").read_text())


CONTRACT = frozenset(name for name, it in vars(Part).items() if callable(it))
COUNTER = Counter()


@pytest.fixture
def project(repo: Path, atoll_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    monkeypatch.setattr(parts, "_parts", list(parts.registered()))
    parts.register(COUNTER)
    COUNTER.called.clear()
    opened = atoll.open_project(repo)
    yield opened
    for capsule in opened.capsules():
        capsule.remove(force=True)
    assert counters(opened) == []
    opened.session.store.close()


def counters(project: Project) -> list[str]:
    return [path.name for path in (project.session.home / "counters").glob("*")]


def value(capsule: Capsule) -> int:
    return int(capsule.report()["counter"]["value"])


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
    assert (fork.record.time_limit_s, x.record.time_limit_s) == (60.0, None)
    x.rollback(first)
    assert (value(x), values(x)) == (1, [1, 2])
    set_value(fork, 7)
    assert value(x) == 1
    fork.remove(force=True)
    assert (value(x), values(x)) == (1, [1, 2])
    x.remove(force=True)
    assert counters(project) == []


def test_every_method_of_the_contract_is_called(project: Project) -> None:
    x = project.new("x")
    assert x.run(["printenv", "ATOLL_COUNTER"]).stdout == b"0\n"
    warned: list[str] = []
    project.session.warn = warned.append
    set_value(x, 100)
    project.fork(x, "y")
    assert warned == ["the counter of x is 100"]
    x.start(RunSpec(argv=("sleep", "60"), background=True))
    x.stop()
    assert value(x) == 2, "the number of the run"
    x.rollback()
    assert value(x) == 100
    x.set_automatic(automatic=True)
    x.run(["true"])
    x.remove(force=True)
    assert set(COUNTER.called) == CONTRACT


def test_change_of_one_part_alone_is_snapshotted_before_a_run(project: Project) -> None:
    x = project.new("x")
    x.set_automatic(automatic=True)
    x.run(["true"])
    x.run(["true"])
    assert values(x) == [0]
    set_value(x, 1)
    x.run(["true"])
    x.run(["true"])
    assert values(x) == [0, 1]


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
    allowed: dict[str, list[dict[str, tuple[int, list[int]]]]] = {
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
