"""A home, a project and capsules with layers, on the shipped fakes: no git, no views, no processes.

The engine and its store are the real ones. `LayeredWorld` does what commands do; `killed_at` ends
one of them at a step as `kill -9` would: nothing of it is undone.
"""
# ruff: noqa: ARG002 - methods have the arguments of the contract

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import Author, IsolationRequest, WorkspaceRequest
from atoll.drivers.layers.pool import Pool, new_upper
from atoll.engine.capsule import creation, parts, removal
from atoll.engine.capsules import Capsule
from atoll.engine.history import bases, snapshots, upkeep
from atoll.engine.state.leases import snapshot_layers, workspace_plan
from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.model.errors import StateError
from atoll.model.plan import CapsulePlan, Refs
from atoll.model.state import PartChange, ProjectRecord
from atoll.testing.fake_layers import FakeLayered
from atoll.testing.fakes import FakeIsolation, read_content

FILES = {"README.md": "# Sample\n", "src/calc.py": "one = 1\n"}


class Killed(BaseException):
    """Stands for the end of the process: no code of Atoll expects it."""


class Base(NamedTuple):
    layers: tuple[str, ...]


def plug_in(monkeypatch):
    """The fakes as drivers of the name `fake`, and layers that are frozen without git."""
    workspace, isolation = "atoll.testing.fake_layers:FakeLayered", "atoll.testing.fakes:Fake"
    monkeypatch.setitem(registry._WORKSPACE, "fake", workspace)
    monkeypatch.setitem(registry._ISOLATION, "fake", f"{isolation}Isolation")
    monkeypatch.setitem(registry._BROWSER, "fake", f"{isolation}Browser")
    monkeypatch.setattr(bases, "ensure_base", freeze)
    monkeypatch.setattr(parts, "_parts", list(parts.registered()))
    # Tests do this work themselves, when they look at its result.
    monkeypatch.setattr(upkeep, "start", lambda _: None)


def freeze(session, project, commit, ground, **_):
    pool = Pool(session.pool(project.id))
    return Base(FakeLayered().freeze(pool, project.git_dir, commit))


class LayeredWorld:
    def __init__(self, place):
        self.root, self.repository = place / "project", place / "repository"
        for name, text in FILES.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        # What `gc` looks for in every repository.
        (self.repository / "objects").mkdir(parents=True)
        self.warnings: list[str] = []
        self.steps: list[str] = []
        self._fatal = ""
        home = place / "home"
        (home / "locks").mkdir(parents=True)
        self.session = Session(
            home=home,
            store=Store(home),
            owner={"ATOLL_DAEMON": "off"},
            listen=self._listen,
            warn=self.warnings.append,
            background=False,
        )
        self.store = self.session.store
        self.driver = FakeLayered()
        self.commit = self.driver.record(str(self.repository), read_content(self.root))
        record = ProjectRecord("shop-1", "shop", str(self.root), str(self.repository))
        self.project = self.store.remember_project(record)
        self.pool = Pool(self.session.pool(record.id))

    def close(self):
        self.store.close()

    def _listen(self, step, subject):
        self.steps.append(step)
        if step == self._fatal:
            raise Killed(step)

    @contextmanager
    def killed_at(self, step):
        self._fatal = step
        try:
            yield
        except Killed:
            return
        finally:
            self._fatal = ""
        raise AssertionError(f"`{step}` was not reached")

    # Commands

    def plan(self, name):
        request = WorkspaceRequest(
            name=name,
            repository=str(self.repository),
            checkout=str(self.root),
            base_commit=self.commit,
            path="",
            pool=str(self.pool.root),
            mode="fake",
        )
        directory = str(self.session.capsule_directory(self.project.id, name))
        inside = IsolationRequest(
            workspace=str(self.root), directory=directory, variables={}, author="", email=""
        )
        return CapsulePlan(
            name=name,
            project=self.project.name,
            level="clone",
            base_ref="main",
            base_commit=self.commit,
            directory=directory,
            workspace=self.driver.plan(request),
            isolation=FakeIsolation().plan(inside),
            ports=("web",),
            refs=Refs((), None, None),
        )

    def new(self, *names):
        """Records of new capsules, made as `atoll new` makes them."""
        plans = [self.plan(name) for name in names]
        made = creation.make_capsules(self.session, self.project, plans)
        return made if len(made) > 1 else made[0]

    def lease(self, name):
        """The record of a capsule that is planned and stored, of which nothing is made."""
        with bases.with_base(self.session, self.project, [self.plan(name)]) as [plan]:
            [made] = self.store.lease_capsules(self.project, [(plan, {})], parts.leases)
        return made, plan

    def take(self, capsule, message=""):
        return snapshots.take(self.session, capsule, parts.registered(), message=message)

    def roll_back(self, capsule, target):
        return snapshots.roll_back(self.session, capsule, target, parts.registered())

    def fork(self, origin, name, point):
        plan = self.plan(name)
        return creation.fork_capsule(self.session, self.project, origin, plan, point)

    def remove(self, capsule, **options):
        return self.handle(capsule).remove(**options)

    def begin_removal(self, capsule, step):
        """A removal that is killed at this step."""
        with self.session.lock_of(capsule) as lock, self.killed_at(step):
            assert lock.acquire()
            removal.announce(self.session, capsule)
            removal.remove(self.session, capsule)

    def handle(self, capsule):
        return Capsule(session=self.session, record=capsule)

    # What processes inside do, and what there is

    def write(self, capsule, name, text):
        self.driver.write(self.workspace(capsule), name, text.encode())

    def delete(self, capsule, name):
        self.driver.remove(self.workspace(capsule), name)

    def commit_all(self, capsule):
        """As `git commit` inside: on the branch, and nowhere else."""
        plan = self.workspace(capsule)
        made = self.driver.commit(plan, "work", Author("Agent", "agent@example.org"))
        self.driver.write(plan, f".git/refs/heads/{plan.branch}", f"{made.commit}\n".encode())
        return made.commit

    def read(self, capsule, name):
        found = self.driver.read(self.workspace(capsule), name)
        return None if found is None else found.decode()

    def read_at(self, capsule, snapshot, name):
        """A file of the capsule as a snapshot holds it."""
        plan = self.driver.on(self.workspace(capsule), snapshot_layers(snapshot), new_upper())
        self.driver.prepare(plan)
        try:
            found = self.driver.read(plan, name)
        finally:
            self.driver.discard(plan, home=self.session.home)
        return None if found is None else found.decode()

    def workspace(self, capsule):
        return workspace_plan(self.session, capsule)

    def stored(self):
        """All that the store says of capsules and their parts."""
        return [
            (capsule, self.store.snapshots(capsule), self.payloads(capsule))
            for capsule in self.store.capsules()
        ]

    def payloads(self, capsule):
        return {part.name: self.store.part(capsule, part.name) for part in parts.registered()}

    def layers(self):
        return set(self.pool.all())

    def own_layers(self):
        """All layers but those of the base."""
        return {layer for layer in self.layers() if not layer.startswith("c")}

    def points(self):
        place = self.session.home / "points"
        return sorted(str(path.relative_to(place)) for path in place.rglob("*.json"))

    def require_nothing_left(self, name):
        """Of a capsule that was removed, but for its recovery point."""
        assert self.store.find_capsule(self.project.id, name) is None
        assert not Path(self.plan(name).directory).exists()
        assert self.store.leased_ports() == set()


class NotedPart(Part):
    """Notes every call in a list, and raises StateError in the methods that `fails_in` names.

    The payload is a number, which `count` increases.
    """

    def __init__(self, name, calls=None):
        self.name = name
        self.calls = [] if calls is None else calls
        self.fails_in = set()

    def _note(self, what):
        self.calls.append((what, self.name))
        if what in self.fails_in:
            raise StateError(f"`{self.name}` fails in {what}")

    def value(self, session, capsule):
        return int(session.store.part(capsule, self.name) or "0")

    def count(self, session, capsule):
        session.store.set_part(capsule, self.name, str(self.value(session, capsule) + 1))

    def create(self, session, capsule, plan, *, lock):
        self._note("create")

    def stop(self, session, capsule):
        self._note("stop")

    @contextmanager
    def quiesce(self, session, capsule):
        self._note("quiesce")
        try:
            yield
        finally:
            self._note("resume")

    def snapshot(self, session, capsule, *, busy):
        self._note("snapshot")
        now = str(self.value(session, capsule))
        return PartChange(now, now)

    def restore(self, session, capsule, target):
        self._note("restore")
        return PartChange(str(self.value(session, capsule)), target.parts[self.name])

    def fork(self, session, origin, point, made):
        self._note("fork")
        session.store.set_part(made, self.name, point.parts[self.name])

    def remove(self, session, capsule, removal):
        self._note("remove")

    def sweep(self, session, capsule, *, dry_run=False):
        self._note("sweep")
        return []
