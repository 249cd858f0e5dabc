"""State of schema version 8, before the table of parts, of version 12, before secrets and agents,
and of version 14, before checks, races and promotions, in files that these versions wrote.

One capsule at level `clone` with a snapshot and browser profiles, one at level `worktree`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from atoll.engine.state import descriptions, restore
from atoll.engine.state.database import SCHEMA_VERSION
from atoll.engine.state.leases import find_damage, snapshot_layers
from atoll.engine.state.session import open_session
from atoll.engine.state.store import Store
from atoll.model.check import CheckResult, CheckStatus, Figure, JunitCounts
from atoll.model.plan import IsolationPlan, Lease, WorkspacePlan
from atoll.model.secret import Delivery, DeliveryKind, OriginKind, SecretOrigin
from atoll.model.state import CapsuleState, SnapshotKind

HERE = Path(__file__).parent
PROJECT = "repo-2db03035"
LAYERS = ("cec1a6b50d5f04b52", "gc74e4a6a9b350f4d", "u1db04cf86202")
VARIABLE = Delivery(DeliveryKind.VARIABLE)
UPPER = "u3ed60c15aca3"
PROFILE, PROFILE_OF_SNAPSHOT = "chromium-5bd7b424dbee", "chromium-b8c6721c05d8"


def old_text(name, place):
    return (HERE / name).read_text().replace("/place", str(place))


def plans(store, capsule):
    """Of its workspace and its isolation."""
    kept = store.parts(capsule)
    kinds = ("workspace", "isolation")
    return [Lease.parse(kind, json.loads(kept[kind])).plan for kind in kinds]


def check_capsule(store):
    """The capsule `x` has all that it had."""
    [x] = [capsule for capsule in store.capsules() if capsule.name == "x"]
    assert (x.state, x.level, x.branch) == (CapsuleState.READY, "clone", "atoll/x")
    workspace, isolation = plans(store, x)
    assert isinstance(workspace, WorkspacePlan)
    assert (workspace.driver, workspace.layers, workspace.upper) == ("overlay", LAYERS, UPPER)
    assert isinstance(isolation, IsolationPlan)
    assert (isolation.driver, isolation.holder) == ("namespace", x.directory)
    assert store.part(x, "browser") == PROFILE
    [snapshot] = store.snapshots(x)
    assert (snapshot.number, snapshot.message, snapshot.moment) == (1, "first", "nothing runs")
    assert snapshot_layers(snapshot) == LAYERS
    assert snapshot.kind is SnapshotKind.MANUAL
    assert snapshot.parts == {"workspace": json.dumps(LAYERS), "browser": PROFILE_OF_SNAPSHOT}


@pytest.fixture
def old_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def test_old_database_is_migrated(old_home, tmp_path):
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        db.executescript(old_text("version8.sql", tmp_path))
        assert db.execute("PRAGMA user_version").fetchone() == (8,)
    store = Store(old_home)
    assert find_damage(store) == []
    check_capsule(store)
    w = store.require_capsule(PROJECT, "w")
    assert [plan.driver for plan in plans(store, w)] == ["worktree", "process"]
    assert (store.part(w, "browser"), store.snapshots(w)) == ("", [])
    assert [run.number for run in store.runs()] == [1, 2]
    store.close()
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    assert "leases" not in tables
    assert list((old_home / "backups").glob("state-*.db")), "no backup before the migration"


def test_database_before_secrets_is_migrated(old_home, tmp_path):
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        db.executescript(old_text("version12.sql", tmp_path))
        assert db.execute("PRAGMA user_version").fetchone() == (12,)
    store = Store(old_home)
    assert find_damage(store) == []
    [x] = [capsule for capsule in store.capsules() if capsule.name == "x"]
    assert (x.automatic, store.grants(x)) == (True, ["api.example.org"])
    assert store.project_grants(PROJECT) == ["pypi.example.org"]
    check_capsule(store)
    before = store.newest_event()
    assert before >= 3
    # The new tables work on what was there before.
    assert (store.secrets(PROJECT), store.agents(PROJECT)) == ([], [])
    secret = store.save_secret(PROJECT, "KEY", SecretOrigin(OriginKind.TYPED), VARIABLE)
    store.add_secret_grant(secret, x.id, "ph", None)
    assert [grant.secret for grant in store.secret_grants(x.id)] == [secret]
    assert store.newest_event() == before + 1
    store.forget_capsule(x)
    assert store.grants_of_secret(secret) == []
    store.close()
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert list((old_home / "backups").glob("state-*.db")), "no backup before the migration"


def test_database_before_checks_is_migrated(old_home, tmp_path):
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        db.executescript(old_text("version14.sql", tmp_path))
        assert db.execute("PRAGMA user_version").fetchone() == (14,)
    store = Store(old_home)
    assert find_damage(store) == []
    check_capsule(store)
    [x] = [capsule for capsule in store.capsules() if capsule.name == "x"]
    assert x.temporary == ""
    assert [grant.secret.name for grant in store.secret_grants(x.id)] == ["KEY"]
    assert [(one.adapter, one.task.prompt) for one in store.agents(PROJECT)] == [
        ("script", "do it")
    ]
    assert [turn.prompt for turn in store.turns(x.id)] == ["do it"]
    # The new tables work on what was there before.
    assert store.check_results(PROJECT, "t") == []
    result = CheckResult(
        id=0, project_id=PROJECT, tree="t", commit="c", name="test", digest="d", command="make",
        status=CheckStatus.FLAKY, at=1.0, took_s=2.0, figures=(Figure("speed", 1.5, "ms"),),
        tests=JunitCounts(passed=1, names=("one",)), log="/place/log",
    )  # fmt: skip
    stored = store.add_check_result(result)
    assert store.find_check_result(PROJECT, "t", "d") == stored == result._replace(id=stored.id)
    assert store.check_logs(PROJECT) == {"/place/log"}
    store.close()
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert list((old_home / "backups").glob("state-*.db")), "no backup before the migration"


def test_old_description_is_adopted(old_home, tmp_path):
    """The database was lost before the upgrade."""
    directory = old_home / "projects" / PROJECT / "x"
    session = open_session(home=old_home, background=False)
    directory.mkdir(parents=True)
    (directory / descriptions.NAME).write_text(old_text("version8-capsule.json", tmp_path))
    for layer in (*LAYERS, UPPER):
        (old_home / "pools" / PROJECT / "layers" / layer).mkdir(parents=True)
    assert restore.adopt(session) == [directory]
    check_capsule(session.store)
    rewritten = descriptions.load(directory)
    assert rewritten is not None
    assert "leases" not in rewritten
    session.store.forget_capsule(session.store.capsules()[0])
    assert restore.adopt(session) == [directory], "the description of this version"
    check_capsule(session.store)
    session.store.close()


@pytest.mark.parametrize(
    ("automatic", "message", "kind"),
    [
        (0, "before rollback to first", SnapshotKind.MANUAL),
        (1, "before rollback to first", SnapshotKind.ROLLBACK),
        (1, "before `make`", SnapshotKind.AUTOMATIC),
    ],
)
def test_kind_of_an_old_snapshot(automatic, message, kind, old_home, tmp_path):
    """In the database and in the description."""
    with contextlib.closing(sqlite3.connect(old_home / "state.db")) as db:
        db.executescript(old_text("version8.sql", tmp_path))
        db.execute("UPDATE snapshots SET automatic = ?, message = ?", (automatic, message))
        db.commit()
    store = Store(old_home)
    assert [snapshot.kind for snapshot in store.snapshots()] == [kind]
    store.close()
    directory = old_home / "projects" / PROJECT / "x"
    directory.mkdir(parents=True)
    raw = json.loads(old_text("version8-capsule.json", tmp_path))
    raw["rows"]["snapshots"][0].update(automatic=automatic, message=message)
    (directory / descriptions.NAME).write_text(json.dumps(raw))
    rows = descriptions.load(directory)
    assert rows is not None
    assert [row["kind"] for row in rows["snapshots"]] == [kind]


def test_incomplete_old_description_is_refused(old_home, tmp_path):
    directory = old_home / "projects" / PROJECT / "x"
    directory.mkdir(parents=True)
    raw = json.loads(old_text("version8-capsule.json", tmp_path))
    del raw["rows"]["leases"]
    (directory / descriptions.NAME).write_text(json.dumps(raw))
    assert descriptions.load(directory) is None
