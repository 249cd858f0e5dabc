from __future__ import annotations

import contextlib
import sqlite3
import threading

import pytest

from atoll.engine.capsule import parts
from atoll.engine.state import events
from atoll.engine.state.store import PortTakenError, Store
from atoll.model.errors import StateError
from atoll.model.plan import Removal
from atoll.model.state import CapsuleState, Outcome, Reason
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
    found = []

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
