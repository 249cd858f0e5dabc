"""The tables of secrets: metadata, grants, audit, and their events."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from atoll.engine.state import restore, secret_rows
from atoll.engine.state.database import DamagedError
from atoll.engine.state.leases import find_damage
from atoll.engine.state.store import Store
from atoll.model.secret import (
    AuditEntry,
    BrokerScope,
    Delivery,
    DeliveryKind,
    OriginKind,
    SecretOrigin,
)

TYPED = SecretOrigin(OriginKind.TYPED)
VARIABLE = Delivery(DeliveryKind.VARIABLE)
SCOPE = BrokerScope(("api.example.org",), ("POST /v1/*",), ("* /admin*",), "", "a/b")
BROKER = Delivery(DeliveryKind.BROKER, broker=SCOPE)


@pytest.fixture
def store(world):
    return world.store


@pytest.fixture
def capsule(world):
    return world.new("x")


def project_of(store):
    [project] = store.projects()
    return project.id


def test_secrets_come_back(store, capsule):
    project = project_of(store)
    origin = SecretOrigin(OriginKind.COMMAND, "pass show x", "/usr/bin")
    made = store.save_secret(project, "KEY", origin, BROKER, 60.0)
    assert (made.origin, made.delivery, made.ttl_s, made.rotated_at) == (origin, BROKER, 60.0, None)
    assert store.secrets(project) == [made]
    again = store.save_secret(project, "KEY", TYPED, VARIABLE)
    assert (again.id, again.origin, again.delivery, again.ttl_s) == (made.id, TYPED, VARIABLE, None)
    assert again.rotated_at is not None
    assert store.find_secret("other", "KEY") is None


def test_grants(store, capsule):
    secret = store.save_secret(project_of(store), "KEY", TYPED, VARIABLE)
    store.add_secret_grant(secret, capsule.id, "first", 5.0)
    [grant] = store.secret_grants(capsule.id)
    assert (grant.secret, grant.placeholder, grant.expires_at, grant.used_at) == (
        secret, "first", 5.0, None,
    )  # fmt: skip
    assert (grant.is_expired(4.9), grant.is_expired(5.0)) == (False, True)
    store.add_secret_grant(secret, capsule.id, "second", None)
    [again] = store.grants_of_secret(secret)
    assert (again.placeholder, again.expires_at) == ("first", None), "capsules hold the first one"
    store.set_secret_used(again)
    assert store.secret_grants(capsule.id)[0].used_at is not None
    assert store.drop_secret_grant(secret, capsule.id)
    assert not store.drop_secret_grant(secret, capsule.id)
    assert store.secret_grants(capsule.id) == []


def test_grants_end_with_their_secret_and_their_capsule(world, store, capsule):
    project = project_of(store)
    one = store.save_secret(project, "ONE", TYPED, VARIABLE)
    two = store.save_secret(project, "TWO", TYPED, VARIABLE)
    for secret in (one, two):
        store.add_secret_grant(secret, capsule.id, "ph", None)
    store.forget_secret(one)
    assert [grant.secret.name for grant in store.secret_grants(capsule.id)] == ["TWO"]
    store.forget_capsule(capsule)
    assert store.grants_of_secret(two) == []


def test_events(store, capsule):
    before = store.newest_event()
    secret = store.save_secret(project_of(store), "KEY", TYPED, VARIABLE)
    store.add_secret_grant(secret, capsule.id, "ph", 7.0)
    store.drop_secret_grant(secret, capsule.id)
    store.add_secret_grant(secret, capsule.id, "ph", None)
    store.forget_secret(secret)
    found = [event for event in store.events(before, limit=50) if event.kind.startswith("secret.")]
    assert [event.kind for event in found] == [
        "secret.granted", "secret.revoked", "secret.granted", "secret.revoked",
    ]  # fmt: skip
    assert (found[0].subject, found[0].payload) == ("KEY", {"expires_at": 7.0})
    assert {event.capsule_id for event in found} == {capsule.id}


def test_audit_keeps_acts_and_the_latest_uses(store, capsule, monkeypatch):
    project = project_of(store)
    monkeypatch.setattr(secret_rows, "USES_KEPT", 3)
    store.add_audit(project, AuditEntry(0.0, "KEY", None, "set"))
    for number in range(6):
        store.add_audit(project, AuditEntry(1.0 + number, "KEY", "x", "used", "fine"))
    store.add_audit(project, AuditEntry(9.0, "OTHER", None, "removed"))
    assert [(one.at, one.act) for one in store.audit(project)] == [
        (0.0, "set"), (4.0, "used"), (5.0, "used"), (6.0, "used"), (9.0, "removed"),
    ]  # fmt: skip
    assert [one.at for one in store.audit(project, "OTHER")] == [9.0]
    assert store.audit("other") == []


@pytest.mark.parametrize("text", ["{", "{}", '{"kind": "nonsense", "of": "", "detail": ""}', "[]"])
def test_damaged_row_is_found(world, store, capsule, text):
    store.save_secret(project_of(store), "KEY", TYPED, VARIABLE)
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        db.execute("UPDATE secrets SET origin = ?", (text,))
        db.commit()
    with pytest.raises(DamagedError, match="damaged secret"):
        store.secrets(project_of(store))
    assert len(find_damage(store)) == 1


def test_no_grant_survives_a_lost_database(world, store, capsule):
    """What was revoked after the backup must not come back."""
    secret = store.save_secret(project_of(store), "KEY", TYPED, VARIABLE)
    store.add_secret_grant(secret, capsule.id, "ph", None)
    store.back_up()
    store.drop_secret_grant(secret, capsule.id)
    vault = store.home / "secrets" / "vault.json"
    vault.parent.mkdir()
    vault.write_text("values")
    project, home = project_of(store), store.home
    store.close()
    for path in home.glob("state.db*"):
        path.unlink()
    done = restore.repair(home)
    assert done is not None
    assert done.has_secrets
    assert vault.read_text() == "values"
    again = Store(home)
    assert [one.name for one in again.secrets(project)] == ["KEY"]
    assert again.secret_grants(capsule.id) == []
    again.close()
