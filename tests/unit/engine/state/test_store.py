from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading

import pytest

from atoll.engine.capsule import parts
from atoll.engine.state import schema
from atoll.engine.state.database import SCHEMA_VERSION
from atoll.engine.state.leases import find_damage, payload_of
from atoll.engine.state.session import find_session, open_session
from atoll.engine.state.store import PortTakenError, Store
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.plan import CapsulePlan, IsolationPlan, Removal, WorkspacePlan
from atoll.model.state import CapsuleState, CheckoutRecord, Outcome, ProjectRecord, Reason, RunState

PROJECT = ProjectRecord(id="shop-1", name="shop", root="/r", git_dir="/r/.git")


def plan_of(name, directory="/h"):
    place = f"{directory}/{name}"
    return CapsulePlan(
        name=name,
        project="shop",
        level="worktree",
        base_ref="main",
        base_commit="c" * 40,
        directory=place,
        workspace=WorkspacePlan(
            driver="worktree",
            repository="/r/.git",
            checkout="/r",
            path=f"{place}/workspace",
            branch=f"atoll/{name}",
            base_commit="c" * 40,
        ),
        isolation=IsolationPlan(
            driver="process", workspace="/w", private="/p", variables={"A": "é\n"}
        ),
        ports=("web",),
        time_limit_s=1.5,
    )


@pytest.fixture
def home(tmp_path):
    return tmp_path


@pytest.fixture
def open_store(home):
    opened = []

    def make():
        opened.append(Store(home))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store):
    made = open_store()
    made.remember_project(PROJECT)
    return made


def lease_run(store, capsule, token="t", states=(CapsuleState.READY,)):
    return store.lease_run(
        capsule, token=token, argv=("echo", "é\udc80"), background=True, tty=False, states=states
    )


def test_database_is_made_in_wal_mode(store, home):
    with sqlite3.connect(home / "state.db") as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    db.close()
    assert not (home / "migrate.lock").exists()


def test_capsule_survives_the_process(store, open_store):
    made = store.lease_capsules(
        PROJECT, [(plan_of("x"), {"web": 20_000, "db": 20_001})], parts.leases
    )[0]
    assert (made.name, made.state, made.ports) == (
        "x",
        CapsuleState.CREATING,
        {"web": 20_000, "db": 20_001},
    )
    assert list(made.ports) == ["web", "db"]
    again = open_store()
    assert again.capsules(PROJECT.id) == [made]
    plan = plan_of("x")
    assert again.parts(made) == {
        "workspace": payload_of(plan.workspace),
        "isolation": payload_of(plan.isolation),
    }
    assert again.unsettled() == [made]
    assert again.leased_ports() == {20_000, 20_001}
    assert again.project_name(PROJECT.id) == "shop"


def test_life_of_a_capsule(store):
    made = store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 1})], parts.leases)[0]
    store.set_ready([made])
    assert store.unsettled() == []
    store.set_removing(made, Removal(point="x/1", keep_branch=True))
    assert store.unsettled()[0].state is CapsuleState.REMOVING
    assert store.removal(made) == Removal(point="x/1", keep_branch=True)
    # A second announcement does not change what the first one has promised.
    store.set_removing(made, Removal(point="x/2", keep_branch=False))
    assert store.removal(made) == Removal(point="x/1", keep_branch=True)
    store.forget_capsule(made)
    assert (store.capsules(), store.leased_ports(), store.parts(made)) == ([], set(), {})


def test_name_is_taken_once_per_project(store):
    store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 1})], parts.leases)[0]
    with pytest.raises(StateError, match="`x`"):
        store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 2})], parts.leases)[0]
    assert store.leased_ports() == {1}
    other = PROJECT._replace(id="other", git_dir="/o/.git")
    store.remember_project(other)
    store.lease_capsules(other, [(plan_of("x"), {"web": 2})], parts.leases)[0]
    assert [c.project_id for c in store.capsules()] == ["shop-1", "other"]
    assert [c.project_id for c in store.capsules("other")] == ["other"]


def test_port_is_taken_once_and_nothing_else_is_kept(store):
    store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 1})], parts.leases)[0]
    with pytest.raises(PortTakenError):
        store.lease_capsules(PROJECT, [(plan_of("y"), {"db": 2, "web": 1})], parts.leases)[0]
    assert store.find_capsule(PROJECT.id, "y") is None
    assert store.leased_ports() == {1}


def test_missing_capsule_is_reported(store):
    with pytest.raises(StateError, match="`x`") as caught:
        store.require_capsule(PROJECT.id, "x")
    assert caught.value.hint == "atoll ls"


def test_life_of_a_run(store):
    capsule = store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 1})], parts.leases)[0]
    store.set_ready([capsule])
    run = lease_run(store, capsule)
    assert (run.number, run.label, run.state, run.argv) == (
        1,
        "x.1",
        RunState.STARTING,
        ("echo", "é\udc80"),
    )
    assert run.directory == f"{capsule.directory}/runs/1"
    store.set_running(run)
    assert store.unfinished_runs()[0].state is RunState.RUNNING
    outcome = Outcome(reason=Reason.EXITED, exit_code=3, message="é", cpu_s=0.5)
    store.set_ended(run, outcome, ended_at=9.0)
    # Only the first end counts.
    store.set_ended(run, Outcome(reason=Reason.LOST), ended_at=10.0)
    store.set_running(run)
    (ended,) = store.runs(capsule)
    assert (ended.outcome, ended.ended_at, ended.state) == (outcome, 9.0, RunState.ENDED)
    assert store.unfinished_runs() == []
    assert lease_run(store, capsule, token="u").number == 2


@pytest.mark.parametrize("state", ["creating", "removing", "gone"])
def test_run_needs_a_capsule_that_is_ready(store, state):
    capsule = store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 1})], parts.leases)[0]
    if state == "removing":
        store.set_removing(capsule, Removal(point="p", keep_branch=False))
    elif state == "gone":
        store.forget_capsule(capsule)
    with pytest.raises(StateError, match="being created or removed"):
        lease_run(store, capsule)
    assert store.runs() == []


def test_set_up_runs_in_a_capsule_that_is_being_made(store):
    capsule = store.lease_capsules(PROJECT, [(plan_of("x"), {"web": 1})], parts.leases)[0]
    assert lease_run(store, capsule, states=(CapsuleState.CREATING,)).number == 1


def test_project_can_move_and_be_renamed(store):
    store.remember_project(PROJECT._replace(name="new", root="/elsewhere"))
    assert store.find_project("/r/.git") == PROJECT._replace(name="new", root="/elsewhere")
    assert store.find_project("/nothing") is None
    assert len(store.projects()) == 1


def test_newer_database_is_left_alone(store, home):
    store.close()
    with sqlite3.connect(home / "state.db") as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    before = (home / "state.db").read_bytes()
    with pytest.raises(StateError) as caught:
        Store(home)
    assert caught.value.exit_code == 4
    assert "upgrade" in str(caught.value.hint)
    assert (home / "state.db").read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"x" * 200]
)
def test_corrupt_database_is_reported_with_a_hint(home, content):
    (home / "state.db").write_bytes(content)
    with pytest.raises(StateError) as caught:
        Store(home)
    assert str(caught.value.hint).startswith("atoll gc")
    assert (home / "state.db").read_bytes() == content


def test_damage_is_found(store, open_store, home):
    for number in range(50):
        store.lease_capsules(
            PROJECT, [(plan_of(f"x{number}"), {"web": 20_000 + number})], parts.leases
        )[0]
    assert find_damage(store) == []
    store.close()
    path = home / "state.db"
    content = bytearray(path.read_bytes())
    for page in range(4096 * 3, len(content), 4096):
        content[page : page + 64] = b"\xff" * 64
    path.write_bytes(content)
    broken = open_store()
    try:
        found = find_damage(broken)
    except StateError as error:
        found = [error.message]
    assert found


@pytest.mark.parametrize("part", ["workspace", "isolation"])
@pytest.mark.parametrize("payload", ["", "{", "[]", '{"driver": "x", "surprise": 1}'])
def test_damaged_plan_is_found(store, part, payload):
    [capsule] = store.lease_capsules(PROJECT, [(plan_of("x"), {})], parts.leases)
    store.set_part(capsule, part, payload)
    found = find_damage(store)
    assert bool(found) == bool(payload), found


def test_directory_in_the_place_of_the_database(home):
    (home / "state.db").mkdir()
    with pytest.raises(StateError, match="directory"):
        Store(home)


def test_read_only_home_is_reported(ordinary_user, open_place):
    def act():
        home = open_place / "home"
        home.mkdir(mode=0o500)
        with pytest.raises(PrerequisiteError) as caught:
            Store(home)
        assert caught.value.exit_code == 3

    ordinary_user(act)


def test_database_that_became_read_only_is_reported(ordinary_user, open_place):
    def act():
        home = open_place / "home"
        home.mkdir()
        first = Store(home)
        first.remember_project(PROJECT)
        first.close()
        (home / "state.db").chmod(0o400)
        home.chmod(0o500)
        try:
            with pytest.raises(PrerequisiteError):
                Store(home).remember_project(PROJECT._replace(name="x"))
        finally:
            home.chmod(0o700)

    ordinary_user(act)


def test_threads_take_turns(store):
    errors = []

    def work(number):
        try:
            capsule = store.lease_capsules(
                PROJECT, [(plan_of(f"c{number}"), {"web": 20_000 + number})], parts.leases
            )[0]
            store.set_ready([capsule])
            for turn in range(5):
                run = lease_run(store, capsule, token=f"{number}-{turn}")
                store.set_running(run)
                store.set_ended(run, Outcome(reason=Reason.EXITED, exit_code=0), ended_at=1.0)
        except Exception as error:  # noqa: BLE001 - told by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.capsules()) == 8
    assert len(store.runs()) == 40
    for capsule in store.capsules():
        assert [run.number for run in store.runs(capsule)] == [1, 2, 3, 4, 5]


CONTEND = """
import sys
from pathlib import Path
from atoll.engine.state.store import Store
store = Store(Path(sys.argv[1]))
for turn in range(20):
    store.set_trusted(f"{sys.argv[2]}-{turn}", "d")
"""


def test_processes_open_and_write_at_the_same_time(home, open_store):
    command = [sys.executable, "-c", CONTEND, home]
    children = [subprocess.Popen([*command, str(number)]) for number in range(6)]
    assert [child.wait(timeout=120) for child in children] == [0] * 6
    store = open_store()
    for number in range(6):
        assert all(store.trusted_digest(f"{number}-{turn}") == "d" for turn in range(20))


def test_interrupted_write_leaves_nothing(store):
    def write():
        with store._write() as db:
            db.execute("INSERT INTO trust VALUES ('p', 'd', 0)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert store.trusted_digest("p") is None
    store.set_trusted("p", "d")
    store.set_trusted("p", "e")
    assert store.trusted_digest("p") == "e"
    assert store.forget_trust("p")
    assert not store.forget_trust("p")


def test_store_of_before_checkouts_is_brought_up_to_date(home):
    """Its ports keep their order and have no number yet."""
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
        db.executescript("".join(schema.STEPS[:2]) + "PRAGMA user_version = 2;")
        db.execute("INSERT INTO projects VALUES (?, ?, ?, ?)", PROJECT)
        db.execute(
            "INSERT INTO capsules (project_id, name, level, state, base_commit, base_ref, "
            "workspace, directory, created_at) "
            "VALUES (?, 'x', 'worktree', 'ready', '', '', '', '', 0)",
            (PROJECT.id,),
        )
        db.executemany("INSERT INTO ports VALUES (?, 1, ?)", [(20_002, "db"), (20_001, "web")])
        db.commit()
    store = Store(home)
    capsule = store.require_capsule(PROJECT.id, "x")
    assert list(capsule.ports) == ["web", "db"]
    assert capsule.numbers == {}
    store.set_checkout(PROJECT.id, capsule.id, {8123, 5432})
    assert store.checkouts() == {PROJECT.id: CheckoutRecord(capsule.id, (5432, 8123))}
    store.forget_capsule(capsule)
    assert store.checkouts() == {}
    store.close()


def test_checkout_of_before_named_ports_is_brought_up_to_date(home):
    """It goes on, with the declared ports only."""
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
        db.executescript("".join(schema.STEPS[:6]) + "PRAGMA user_version = 6;")
        db.execute("INSERT INTO projects VALUES (?, ?, ?, ?)", PROJECT)
        db.execute(
            "INSERT INTO capsules (project_id, name, level, state, base_commit, base_ref, "
            "workspace, directory, created_at) "
            "VALUES (?, 'x', 'sandbox', 'ready', '', '', '', '', 0)",
            (PROJECT.id,),
        )
        db.execute("INSERT INTO checkouts VALUES (?, 1)", (PROJECT.id,))
        db.commit()
    store = Store(home)
    assert store.checkouts() == {PROJECT.id: CheckoutRecord(1)}
    store.set_checkout(PROJECT.id, 1, [5432])
    assert store.checkouts() == {PROJECT.id: CheckoutRecord(1, (5432,))}
    store.close()


def test_checkout_of_a_capsule_that_is_gone(store):
    with pytest.raises(StateError):
        store.set_checkout(PROJECT.id, 99)
    assert store.checkouts() == {}


def test_store_of_before_narrowings_is_brought_up_to_date(home):
    """Runs that had no network count as narrowed; of what they could write nothing is known."""
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
        db.executescript("".join(schema.STEPS[:5]) + "PRAGMA user_version = 5;")
        db.execute("INSERT INTO projects VALUES (?, ?, ?, ?)", PROJECT)
        for name in ("x", "y"):
            db.execute(
                "INSERT INTO capsules (project_id, name, level, state, base_commit, base_ref, "
                "workspace, directory, created_at) "
                "VALUES (?, ?, 'sandbox', 'ready', '', '', '', '', 0)",
                (PROJECT.id, name),
            )
        db.executemany(
            "INSERT INTO runs (capsule_id, number, token, argv, state, background, tty, directory, "
            "created_at, network) VALUES (?, 1, ?, '[]', 'ended', 0, 0, '', 0, ?)",
            [(1, "a", "none"), (2, "b", None)],
        )
        db.execute(
            "INSERT INTO snapshots (capsule_id, number, message, layers, automatic, synced, "
            "created_at) VALUES (1, 1, '', '[]', 0, 0, 0)"
        )
        db.commit()
    store = Store(home)
    x, y = (store.require_capsule(PROJECT.id, name) for name in ("x", "y"))
    assert store.narrowings(x) == [("none", ())]
    assert store.narrowings(y) == []
    assert [run.write for run in store.runs()] == [(), ()]
    assert store.snapshots(x)[0].moment == ""
    for write in (("b", "a"), ("a", "b", "b")):
        store.lease_run(
            y, token=str(write), argv=(), background=False, tty=False, write=write,
            states=(CapsuleState.READY,),
        )  # fmt: skip
    assert store.narrowings(y) == [(None, ("a", "b"))]
    store.inherit_narrowings(y, x)
    assert store.narrowings(y) == [(None, ("a", "b")), ("none", ())]


def test_store_of_before_project_grants_is_brought_up_to_date(home):
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
        db.executescript("".join(schema.STEPS[:7]) + "PRAGMA user_version = 7;")
        db.execute("INSERT INTO projects VALUES (?, ?, ?, ?)", PROJECT)
        db.commit()
    store = Store(home)
    assert store.project_grants(PROJECT.id) == []
    for rule in ("one.example", "python", "one.example"):
        store.add_project_grant(PROJECT.id, rule)
    assert store.project_grants(PROJECT.id) == ["one.example", "python"]
    assert store.drop_project_grant(PROJECT.id, "python")
    assert not store.drop_project_grant(PROJECT.id, "python")
    assert store.project_grants("another") == []
    store.close()


def test_the_stamp_changes_with_every_write_of_anybody(store, open_store):
    other = open_store()
    before = store.stamp()
    assert store.stamp() == before
    other.remember_project(PROJECT._replace(name="theirs"))
    theirs = store.stamp()
    assert theirs != before
    store.remember_project(PROJECT._replace(name="ours"))
    assert store.stamp() != theirs


def test_no_description_is_written_outside_of_the_home(store, home, tmp_path):
    store.remember_project(PROJECT)
    outside = tmp_path / "outside"
    for name, directory in (("x", outside), ("y", home / "projects" / PROJECT.id)):
        plan = plan_of(name, str(directory))
        [made] = store.lease_capsules(PROJECT, [(plan, {})], parts.leases)
        store.set_ready([made])
    assert not outside.exists()
    assert (home / "projects" / PROJECT.id / "y" / "capsule.json").is_file()


def test_no_database_is_made_where_one_was_removed(home, store):
    """A daemon that outlives a home which is being removed must not make it anew."""
    for path in home.glob("state.db*"):
        path.unlink()
    with pytest.raises(StateError, match="was removed"):
        store.projects()
    with pytest.raises(StateError, match="was removed"):
        store.remember_project(PROJECT)
    assert not list(home.glob("state.db*"))


def test_process_in_the_background_makes_no_home_again(tmp_path):
    assert find_session(tmp_path / "home") is None
    assert list(tmp_path.iterdir()) == []
    open_session(home=tmp_path / "home").store.close()
    found = find_session(tmp_path / "home")
    assert found is not None
    found.store.close()
