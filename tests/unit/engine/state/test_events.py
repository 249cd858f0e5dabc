from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading

import pytest

from atoll.engine.capsule import parts
from atoll.engine.capsules import Capsule
from atoll.engine.projects import Project
from atoll.engine.run import freezer
from atoll.engine.state import events, schema
from atoll.engine.state.session import Session
from atoll.engine.state.store import PortTakenError, Store
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.plan import Removal
from atoll.model.state import CapsuleState, Outcome, PartChange, ProjectRecord, Reason, SnapshotKind
from unit.engine.state.test_old_state import old_text
from unit.engine.state.test_store import PROJECT, plan_of


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path)
    opened.remember_project(PROJECT)
    yield opened
    opened.close()


def kinds(store, after=0):
    found = events.read_events(store, after, follow=False, matches=lambda _: True)
    return [(event.kind, event.capsule, event.subject) for event in found]


def test_checks_races_and_promotions_are_events(store):
    with store._write() as db:
        statements = (
            """INSERT INTO check_results (project_id, tree, name, digest, status, at, payload)
            VALUES (:id, 't', 'test', 'd', 'flaky', 0, '{}')""",
            """INSERT INTO races (id, project_id, name, state, base_commit, created_at, payload)
            VALUES (7, :id, 'fast', 'running', 'b', 0, '{}')""",
            "INSERT INTO candidates VALUES (7, 1, 'fast-1', 'queued', '{}')",
            "UPDATE candidates SET state = 'running' WHERE race_id = 7",
            "UPDATE races SET state = 'finished' WHERE id = 7",
            "UPDATE races SET winner = 'fast-1' WHERE id = 7",
            """INSERT INTO promotions (id, project_id, capsule, state, created_at, payload)
            VALUES (3, :id, 'fast-1', 'running', 0, '{}')""",
            "INSERT INTO promotion_steps VALUES (3, 1, 'local', 'land', 'started', 0, '{}')",
            "UPDATE promotion_steps SET state = 'done' WHERE promotion_id = 3",
            """INSERT INTO approvals (project_id, capsule, stage, tree, by, at)
            VALUES (:id, 'fast-1', 'staging', 't', 'me', 0)""",
            "UPDATE promotions SET state = 'passed' WHERE id = 3",
            "DELETE FROM races WHERE id = 7",
        )
        for statement in statements:
            db.execute(statement, {"id": PROJECT.id})
    assert kinds(store) == [
        ("check.flaky", None, "test"),
        ("race.running", None, "fast"),
        ("candidate.running", None, "fast-1"),
        ("race.finished", None, "fast"),
        ("race.picked", None, "fast"),
        ("promotion.running", None, "fast-1"),
        ("promotion.step", None, "fast-1"),
        ("promotion.step", None, "fast-1"),
        ("promotion.approved", None, "fast-1"),
        ("promotion.passed", None, "fast-1"),
        ("race.removed", None, "fast"),
    ]
    found = list(events.read_events(store, 0, follow=False, matches=lambda _: True))
    assert found[2].payload == {"race": "fast", "from": "queued"}
    assert found[7].payload == {"stage": "local", "act": "land", "state": "done"}


def test_temporary_capsules_are_no_events(store):
    plan = plan_of("check-1")._replace(temporary="token")
    [made] = store.lease_capsules(PROJECT, [(plan, {"web": 20_000})], parts.leases)
    store.set_ready([made])
    run = store.lease_run(
        made, token="t", argv=["x"], background=False, tty=False, states=(CapsuleState.READY,)
    )
    store.set_running(run)
    store.forget_capsule(made)
    assert kinds(store) == []


def make(store, name="x", port=20_000):
    [capsule] = store.lease_capsules(PROJECT, [(plan_of(name), {"web": port})], parts.leases)
    return capsule


def test_every_change_is_an_event(store):
    x = make(store)
    store.set_ready([x])
    run = store.lease_run(
        x, token="t", argv=["secret"], background=False, tty=False,
        states=(CapsuleState.READY, CapsuleState.CREATING),
    )  # fmt: skip
    store.set_running(run)
    store.set_ended(run, Outcome(reason=Reason.EXITED, exit_code=3), ended_at=1.0)
    store.set_ended(run, Outcome(reason=Reason.LOST), ended_at=2.0)
    store.add_grant(x, "example.org:443")
    assert store.drop_grant(x, "example.org:443")
    store.add_project_grant(PROJECT.id, "example.org:443")
    store.change_ports(x, {"api": (20_001, 4000)}, ["web"])
    store.set_checkout(PROJECT.id, x.id, (80,))
    store.set_removing(x, Removal(point="p", keep_branch=False, save=False))
    store.forget_capsule(x)
    assert kinds(store) == [
        ("capsule.creating", "x", "x"),
        ("port.leased", "x", "web"),
        ("capsule.ready", "x", "x"),
        ("run.starting", "x", "1"),
        ("run.running", "x", "1"),
        ("run.ended", "x", "1"),
        ("network.allowed", "x", "example.org:443"),
        ("network.revoked", "x", "example.org:443"),
        ("network.allowed", None, "example.org:443"),
        ("port.released", "x", "web"),
        ("port.leased", "x", "api"),
        ("port.checked-out", "x", ""),
        ("capsule.removing", "x", "x"),
        ("capsule.removed", "x", "x"),
    ]
    found = list(events.read_events(store, 0, follow=False, matches=lambda _: True))
    ended = found[5]
    assert ended.payload == {
        "state": "ended", "network": None, "reason": "exited", "exit_code": 3,
    }  # fmt: skip
    assert found[11].payload == {"ports": [80]}
    assert {event.project_id for event in found} == {PROJECT.id}
    assert "secret" not in repr(found)
    assert kinds(store, after=ended.id)[0] == ("network.allowed", "x", "example.org:443")


def test_change_that_fails_is_no_event(store):
    make(store)
    before = kinds(store)
    with pytest.raises(PortTakenError):
        make(store, "y")
    assert kinds(store) == before


def test_internal_runs_are_no_events(store):
    x = make(store)
    before = kinds(store)
    states = (CapsuleState.CREATING,)
    run = store.lease_run(
        x, token="t", argv=["git"], background=False, tty=False, states=states, is_own=True
    )
    assert run.internal
    store.set_ended(run, Outcome(reason=Reason.EXITED), ended_at=1.0)
    store.forget_run(run)
    assert kinds(store) == before


def test_cursor_that_is_too_old_or_of_another_database(store):
    for number in range(6):
        make(store, f"c{number}", 20_000 + number)
    newest = store.newest_event()
    assert newest == 12
    store.prune_events(keep=4)
    assert len(kinds(store)) == 4
    assert len(kinds(store, after=newest - 4)) == 4
    assert kinds(store, after=newest) == []
    for cursor in (1, newest - 5, newest + 1):
        with pytest.raises(StateError):
            kinds(store, after=cursor)
    store.prune_events(keep=0)
    assert (kinds(store), store.newest_event()) == ([], newest)
    make(store, "later", 21_000)
    assert [event.id for event in store.events(newest, limit=9)] == [newest + 1, newest + 2]


def test_followed_from_another_connection(store, tmp_path):
    found: list[object] = []

    def follow():
        reader = Store(tmp_path)
        with contextlib.closing(reader):
            stream = events.read_events(reader, 0, follow=True, matches=lambda _: True)
            found.extend(next(stream).kind for _ in range(3))

    thread = threading.Thread(target=follow)
    thread.start()
    store.set_ready([make(store)])
    thread.join(timeout=30)
    assert found == ["capsule.creating", "port.leased", "capsule.ready"]


def test_database_of_an_older_version_records_events(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as db:
        db.executescript(old_text("version8.sql", tmp_path))
    with contextlib.closing(Store(tmp_path)) as store:
        assert kinds(store) == []
        [w] = [capsule for capsule in store.capsules() if capsule.name == "w"]
        store.add_grant(w, "example.org:443")
        assert kinds(store) == [("network.allowed", "w", "example.org:443")]


def test_database_of_the_version_before_keeps_its_snapshots_and_events(tmp_path):
    """Version 11, which recorded no target of a rollback."""
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as db:
        db.executescript("".join(schema.STEPS[:11]) + "PRAGMA user_version = 11;")
        db.execute("INSERT INTO projects VALUES (?, ?, ?, ?)", PROJECT)
        db.execute(
            "INSERT INTO capsules (project_id, name, level, state, base_commit, base_ref, "
            "workspace, directory, created_at) "
            "VALUES (?, 'x', 'clone', 'ready', '', '', '', '', 1)",
            (PROJECT.id,),
        )
        db.execute(
            "INSERT INTO snapshots (capsule_id, number, message, kind, synced, created_at) "
            "VALUES (1, 1, '', 'rollback', 1, 1)"
        )
        db.commit()
    with contextlib.closing(Store(tmp_path)) as store:
        [x] = store.capsules()
        assert [(s.kind, s.target) for s in store.snapshots()] == [(SnapshotKind.ROLLBACK, None)]
        store.add_snapshot(x, {}, message="", kind=SnapshotKind.ROLLBACK, target=1)
        payloads = [event.payload for event in store.events(0, limit=9)]
        assert payloads[1:] == [{"kind": "rollback"}, {"kind": "rollback", "target": 1}]


@pytest.fixture
def project(store, tmp_path):
    return Project(session=Session(home=tmp_path, store=store, owner={}), record=PROJECT)


def capsule_of(project, tmp_path, name="x", port=20_000):
    """A handle on a capsule that has a directory, and nothing else."""
    plan = plan_of(name, str(tmp_path))
    store = project.session.store
    [record] = store.lease_capsules(project.record, [(plan, {"web": port})], parts.leases)
    (tmp_path / name).mkdir()
    return Capsule(session=project.session, record=record)


def test_project_and_capsule_have_their_own_events(project, store, tmp_path):
    other = Project(
        session=project.session,
        record=store.remember_project(ProjectRecord("other-1", "other", "/o", "/o/.git")),
    )
    x, y = (capsule_of(project, tmp_path, name, 20_000 + i) for i, name in enumerate("xy"))
    z = capsule_of(other, tmp_path, "z", 20_002)
    store.add_project_grant(PROJECT.id, "example.org:443")
    assert {event.capsule for event in project.events()} == {"x", "y", None}
    assert {event.capsule for event in x.events()} == {"x"}
    assert [event.kind for event in z.events()] == ["capsule.creating", "port.leased"]
    assert [event.id for event in other.events()] == [event.id for event in z.events()]
    assert len(list(project.events())) == len([*x.events(), *y.events()]) + 1


def test_events_after_a_cursor(project, store, tmp_path):
    assert project.newest_event() == 0
    x = capsule_of(project, tmp_path)
    cursor = project.newest_event()
    assert list(project.events(after=cursor)) == []
    store.set_ready([x.record])
    [event] = project.events(after=cursor)
    assert (event.id, event.kind, event.payload) == (
        cursor + 1, "capsule.ready", {"from": "creating"},
    )  # fmt: skip
    assert list(x.events(after=cursor)) == [event]
    store.prune_events(keep=1)
    assert list(project.events()) == [event]
    for one in (project, x):
        with pytest.raises(StateError, match="are not kept"):
            list(one.events(after=1))


def test_following_ends_after_a_time(project, tmp_path):
    x = capsule_of(project, tmp_path)
    assert len(list(x.events(follow=True, timeout_s=0.05))) == 2


FOLLOW = """
import sys
from pathlib import Path
from atoll.engine.projects import Project
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
home = Path(sys.argv[1])
session = Session(home=home, store=Store(home), owner={})
project = Project(session=session, record=session.store.projects()[0])
print("begins", flush=True)
for event in project.events(after=int(sys.argv[2]), follow=True, timeout_s=60):
    print(event.kind, event.subject, flush=True)
    if event.kind == "capsule.removed":
        break
"""


def test_followed_from_another_process(project, store, tmp_path):
    capsule_of(project, tmp_path, "before", 20_001)
    argv = [sys.executable, "-c", FOLLOW, str(tmp_path), str(project.newest_event())]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "begins\n"
        x = capsule_of(project, tmp_path)
        store.set_ready([x.record])
        assert [follower.stdout.readline() for _ in range(3)] == [
            "capsule.creating x\n", "port.leased web\n", "capsule.ready x\n",
        ]  # fmt: skip
        store.forget_capsule(x.record)
        assert follower.stdout.read() == "capsule.removed x\n"
    assert follower.returncode == 0


def test_pausing_is_one_event(project, tmp_path):
    x = capsule_of(project, tmp_path)
    cursor = project.newest_event()
    for act in (x.resume, x.pause, x.pause, x.resume, x.resume):
        act()
    assert [(e.kind, e.subject) for e in x.events(after=cursor)] == [
        ("capsule.paused", "x"), ("capsule.resumed", "x"),
    ]  # fmt: skip
    assert not freezer.is_paused(x.record)


def test_pausing_does_not_depend_on_its_event(project, tmp_path, monkeypatch):
    """On a full disk nothing can be recorded, but a capsule can still be paused and resumed."""
    x = capsule_of(project, tmp_path)
    warned: list[str] = []
    monkeypatch.setattr(x.session, "warn", warned.append)

    def fail(*_: object) -> None:
        raise PrerequisiteError("the disk is full")

    monkeypatch.setattr(x.session.store, "add_event", fail)
    x.pause()
    assert freezer.is_paused(x.record)
    x.resume()
    assert not freezer.is_paused(x.record)
    assert len(warned) == 2


def test_automatic_snapshots_are_one_event(project, store, tmp_path):
    x = capsule_of(project, tmp_path)
    cursor = project.newest_event()
    for automatic in (False, True, True, False):
        store.set_automatic(x.record, automatic=automatic)
    kinds_of = [event.kind for event in x.events(after=cursor)]
    assert kinds_of == ["snapshot.automatic-on", "snapshot.automatic-off"]


def test_rollback_names_its_target(project, store, tmp_path):
    x = capsule_of(project, tmp_path)
    cursor = project.newest_event()
    changes = {"toy": PartChange("a", "b")}
    store.add_snapshot(x.record, changes, message="", kind=SnapshotKind.MANUAL)
    store.add_snapshot(x.record, changes, message="", kind=SnapshotKind.ROLLBACK, target=1)
    assert [(e.kind, e.subject, e.payload) for e in x.events(after=cursor)] == [
        ("snapshot.taken", "1", {"kind": "manual", "target": None}),
        ("snapshot.taken", "2", {"kind": "rollback", "target": 1}),
    ]
    assert [snapshot.target for snapshot in x.snapshots()] == [None, 1]
