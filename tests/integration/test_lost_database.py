"""A database that is deleted or damaged: every verb says so, and `atoll gc` brings all back."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing

import pytest

SECOND = "cap-second"


def remove(home):
    (home / "state.db").unlink()


def remove_all(home):
    for path in home.glob("state.db*"):
        path.unlink()


def fill_with_noise(home):
    remove_all(home)
    (home / "state.db").write_bytes(bytes(range(256)) * 200)


def empty(home):
    remove_all(home)
    (home / "state.db").touch()


def truncate(home):
    path = home / "state.db"
    path.write_bytes(path.read_bytes()[:6000])


def replace_with_directory(home):
    remove_all(home)
    (home / "state.db").mkdir()


def break_text(home):
    with closing(sqlite3.connect(home / "state.db")) as db:
        db.execute("UPDATE projects SET name = cast(x'ff41' AS TEXT)")
        db.commit()


def break_record(home):
    with closing(sqlite3.connect(home / "state.db")) as db:
        db.execute("UPDATE capsules SET exported = '{'")
        db.commit()


def remove_table(home):
    with closing(sqlite3.connect(home / "state.db")) as db:
        db.execute("DROP TABLE snapshots")
        db.execute("DROP TABLE ports")
        db.commit()


DAMAGES = (
    remove, remove_all, fill_with_noise, empty, truncate, replace_with_directory, break_text,
    break_record, remove_table,
)  # fmt: skip


@pytest.fixture
def used(atoll, repo, atoll_home):
    """Two capsules, of which only the first is in the backup; with work, a run and a port."""
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo work >w.txt; exit 3", cwd=repo, check=False)
    atoll("new", SECOND, cwd=repo)
    return atoll_home


def state_of(atoll, repo):
    """What must be the same afterwards."""
    names = [c["name"] for c in json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"]]
    shown = {name: json.loads(atoll("show", name, "--json", cwd=repo).stdout) for name in names}
    for data in shown.values():
        data["data"].pop("age_s", None)
    runs = [(r["number"], r["outcome"]["exit_code"]) for r in shown["x"]["data"]["runs"]]
    return names, [shown[n]["data"]["base_commit"] for n in names], runs


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_gc_brings_everything_back(atoll, repo, used, damage):
    before = state_of(atoll, repo)
    assert before[0] == ["x", SECOND]
    damage(used)
    for verb in (("ls",), ("new", "z")):
        told = atoll(*verb, cwd=repo, check=False)
        assert (told.returncode, told.stdout) == (4, ""), told
        assert "hint: atoll gc restores it" in told.stderr
        assert "Traceback" not in told.stderr
    assert "restored it from the backup" in atoll("gc", cwd=repo).stderr
    assert state_of(atoll, repo) == before
    assert atoll("run", "x", "--", "cat", "w.txt", cwd=repo).stdout == "work\n"
    assert atoll("gc", cwd=repo).stderr == "nothing to remove\n"


def test_doctor_names_the_fix(atoll, repo, used):
    fill_with_noise(used)
    done = atoll("doctor", cwd=repo, check=False)
    assert done.returncode == 3
    assert "hint: state: atoll gc restores it" in done.stderr


def test_descriptions_alone_are_enough(atoll, repo, used):
    before = state_of(atoll, repo)
    remove_all(used)
    shutil.rmtree(used / "backups")
    assert "restored it from" in atoll("gc", cwd=repo).stderr
    assert state_of(atoll, repo) == before


def test_a_damaged_backup_is_passed_over(atoll, repo, used):
    before = state_of(atoll, repo)
    [backup] = (used / "backups").glob("state-*.db")
    (used / "backups" / "state-99990101T000000.db").write_bytes(backup.read_bytes()[:5000])
    fill_with_noise(used)
    assert str(backup) in atoll("gc", cwd=repo).stderr
    assert state_of(atoll, repo) == before
    # What was damaged is kept.
    [kept] = used.glob("damaged/*/state.db")
    assert kept.read_bytes() == bytes(range(256)) * 200


def test_a_capsule_that_is_older_than_descriptions_gets_one(atoll, repo, used):
    """As the landed version left it: no backup, no description."""
    for path in used.glob("projects/*/*/capsule.json"):
        path.unlink()
    shutil.rmtree(used / "backups")
    atoll("new", "third", cwd=repo)
    before = state_of(atoll, repo)
    remove_all(used)
    shutil.rmtree(used / "backups")
    atoll("gc", cwd=repo)
    assert state_of(atoll, repo) == before


def test_a_capsule_that_was_removed_stays_away(atoll, repo, used):
    atoll("rm", SECOND, cwd=repo)
    backup = next((used / "backups").glob("state-*.db"))
    with closing(sqlite3.connect(used / "state.db")) as db:
        backup.unlink()
        db.execute("VACUUM INTO ?", (str(backup),))
    atoll("rm", "x", "--force", cwd=repo)
    remove_all(used)
    done = atoll("gc", cwd=repo)
    assert "restored it from the backup" in done.stderr
    assert json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"] == []
    assert len(json.loads(atoll("recover", "--json", cwd=repo).stdout)["data"]) == 1


def test_a_revoked_approval_does_not_come_back(atoll, repo, used):
    (repo / "atoll.toml").write_text("[capsule]\nlevel = 'worktree'\n")
    atoll("trust", cwd=repo)
    atoll("untrust", cwd=repo)
    remove_all(used)
    atoll("gc", cwd=repo)
    with closing(sqlite3.connect(used / "state.db")) as db:
        assert db.execute("SELECT count(*) FROM trust").fetchone() == (0,)


def test_an_old_database_in_the_place_of_the_new(atoll, repo, used):
    """Such as one whose journal was removed: sound, but it does not know all capsules."""
    before = state_of(atoll, repo)
    remove_all(used)
    shutil.copyfile(next((used / "backups").glob("state-*.db")), used / "state.db")
    told = atoll("ls", cwd=repo).stderr
    assert f"the database has no record of `{SECOND}`" in told or "`x`" in told
    assert "hint: atoll gc" in told
    assert "restored" in atoll("gc", cwd=repo).stdout
    assert state_of(atoll, repo) == before


def test_dry_run_repairs_nothing(atoll, repo, used):
    fill_with_noise(used)
    noise = (used / "state.db").read_bytes()
    assert atoll("gc", "--dry-run", cwd=repo, check=False).returncode == 4
    assert (used / "state.db").read_bytes() == noise


def test_backups_are_few_and_private(atoll, repo, used):
    """One was made at the first change; others follow only after some minutes."""
    found = list((used / "backups").iterdir())
    assert [path.stat().st_mode & 0o777 for path in found] == [0o600]
