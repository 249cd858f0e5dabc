"""No command deletes work that exists nowhere else: `rm` refuses, `--force` stores, `recover`
brings back, and neither `gc` nor a lost database nor a lost repository takes any of it away.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.testing.faults import find_leftovers, left_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Snapshot:
    """A workspace, byte for byte, as files and as git sees it."""

    files: dict[bytes, tuple[str, bytes]]
    staged: str
    unstaged: str
    head: str


class Place:
    """One project, one Atoll home, and the capsule `x` that the tests leave work in."""

    def __init__(
        self, home: Path, repo: Path, atoll: Callable[..., Any], git: Callable[..., str]
    ) -> None:
        self.home, self.repo, self._atoll, self._git = home, repo, atoll, git

    def atoll(self, *args: str, code: int = 0) -> Any:
        done = self._atoll(*args, cwd=self.repo, check=False)
        assert done.returncode == code, (args, done.stdout, done.stderr)
        return done

    def ask(self, *args: str) -> Any:
        return json.loads(self.atoll(*args, "--json").stdout)["data"]

    def git(self, *args: str, cwd: Path | None = None, check: bool = True) -> str:
        return self._git(*args, cwd=cwd or self.repo, check=check)

    def workspace(self, name: str = "x") -> Path:
        return next((self.home / "projects").glob(f"*/{name}/workspace/{name}"))

    def points(self) -> list[dict[str, Any]]:
        return self.ask("recover")

    def refs(self) -> str:
        return self.git("for-each-ref", "refs/atoll/recovery")

    def names(self) -> list[str]:
        return [capsule["name"] for capsule in self.ask("ls")]

    def commit(self, name: str, *, cwd: Path) -> str:
        (cwd / name).write_text(f"{name}\n")
        self.git("add", name, cwd=cwd)
        self.git("commit", "--quiet", "--message", name, cwd=cwd)
        return self.git("rev-parse", "HEAD", cwd=cwd).strip()

    def snapshot(self, name: str = "x") -> Snapshot:
        place = self.workspace(name)
        return Snapshot(
            files=read_tree(place),
            staged=self.git("diff", "--cached", "--raw", "--abbrev=40", cwd=place),
            unstaged=self.git("status", "--porcelain=v2", "--untracked-files=all", cwd=place),
            head=self.git("rev-parse", "HEAD", cwd=place),
        )


def read_any(path: bytes, mode: int) -> bytes:
    """The content also of a file that forbids it; its mode stays as it was."""
    os.chmod(path, mode | 0o400)
    content = Path(os.fsdecode(path)).read_bytes()
    os.chmod(path, mode)
    return content


def read_tree(root: Path) -> dict[bytes, tuple[str, bytes]]:
    """Every file below, by its raw name: kind and mode as git knows them, and the content."""
    found = {}
    for directory, _, names in os.walk(os.fsencode(root)):
        for name in names:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            is_link = stat.S_ISLNK(mode)
            with_content = os.readlink(path) if is_link else read_any(path, mode)
            kind = "link" if is_link else "program" if mode & 0o100 else "file"
            relative = os.path.relpath(path, os.fsencode(root))
            if relative != b".git":
                found[relative] = (kind, with_content)
    return found


@pytest.fixture
def place(
    atoll_home: Path, repo: Path, atoll: Callable[..., Any], git: Callable[..., str]
) -> Place:
    made = Place(atoll_home, repo, atoll, git)
    made.atoll("new", "x")
    return made


def leave_uncommitted(place: Place) -> None:
    (place.workspace() / "app.py").write_text("changed\n")


def leave_deleted(place: Place) -> None:
    (place.workspace() / "app.py").unlink()


def leave_staged_only(place: Place) -> None:
    path = place.workspace() / "app.py"
    before = path.read_text()
    path.write_text("staged\n")
    place.git("add", "app.py", cwd=place.workspace())
    path.write_text(before)


def leave_mode(place: Place) -> None:
    (place.workspace() / "app.py").chmod(0o755)


def leave_untracked(place: Place) -> None:
    (place.workspace() / "new.txt").write_text("new\n")


def leave_untracked_in_directory(place: Place) -> None:
    (place.workspace() / "deep" / "er").mkdir(parents=True)
    (place.workspace() / "deep" / "er" / "new.txt").write_text("new\n")


def leave_untracked_that_config_hides(place: Place) -> None:
    place.git("config", "status.showUntrackedFiles", "no", cwd=place.workspace())
    leave_untracked(place)


def leave_commits(place: Place) -> None:
    place.commit("done.txt", cwd=place.workspace())


def leave_detached_commits(place: Place) -> None:
    place.git("checkout", "--quiet", "--detach", cwd=place.workspace())
    place.commit("detached.txt", cwd=place.workspace())


def leave_commits_behind_a_detached_head(place: Place) -> None:
    """The branch holds commits, HEAD does not."""
    place.commit("done.txt", cwd=place.workspace())
    place.git("checkout", "--quiet", "--detach", "HEAD~1", cwd=place.workspace())


def leave_conflict(place: Place) -> None:
    workspace = place.workspace()
    place.git("checkout", "--quiet", "-b", "theirs", cwd=workspace)
    (workspace / "app.py").write_text("theirs\n")
    place.git("commit", "--quiet", "--all", "--message", "theirs", cwd=workspace)
    place.git("checkout", "--quiet", "atoll/x", cwd=workspace)
    (workspace / "app.py").write_text("ours\n")
    place.git("commit", "--quiet", "--all", "--message", "ours", cwd=workspace)
    place.git("merge", "theirs", cwd=workspace, check=False)
    assert "<<<<<<<" in (workspace / "app.py").read_text()


def leave_nested_repository(place: Place) -> None:
    nested = place.workspace() / "vendor"
    nested.mkdir()
    place.git("init", "--quiet", cwd=nested)
    place.commit("inner.txt", cwd=nested)


def leave_empty_nested_repository(place: Place) -> None:
    nested = place.workspace() / "vendor"
    nested.mkdir()
    place.git("init", "--quiet", cwd=nested)
    (nested / "inner.txt").write_text("inner\n")


def leave_broken_link(place: Place) -> None:
    (place.workspace() / ".git").unlink()
    (place.workspace() / "new.txt").write_text("new\n")


def leave_foreign_link(place: Place) -> None:
    """The agent replaced the link by a repository of its own."""
    workspace = place.workspace()
    (workspace / ".git").unlink()
    place.git("init", "--quiet", cwd=workspace)
    place.commit("own.txt", cwd=workspace)


def leave_garbage_index(place: Place) -> None:
    index = place.git("rev-parse", "--git-path", "index", cwd=place.workspace()).strip()
    Path(index).write_bytes(b"garbage")
    (place.workspace() / "new.txt").write_text("new\n")


def leave_unreadable(place: Place) -> None:
    path = place.workspace() / "secret.txt"
    path.write_text("secret\n")
    path.chmod(0)


LEAVINGS = {
    "uncommitted": (leave_uncommitted, "uncommitted"),
    "deleted": (leave_deleted, "uncommitted"),
    "staged-only": (leave_staged_only, "uncommitted"),
    "mode": (leave_mode, "uncommitted"),
    "untracked": (leave_untracked, "untracked"),
    "untracked-in-directory": (leave_untracked_in_directory, "untracked"),
    "untracked-hidden-by-config": (leave_untracked_that_config_hides, "untracked"),
    "commits": (leave_commits, "1 commit that no other branch holds"),
    "detached-commits": (leave_detached_commits, "1 commit that no other branch holds"),
    "behind-detached": (leave_commits_behind_a_detached_head, "1 commit"),
    "conflict": (leave_conflict, "uncommitted"),
    "nested": (leave_nested_repository, "nested"),
    "nested-empty": (leave_empty_nested_repository, "nested"),
    "broken-link": (leave_broken_link, "cannot be compared"),
    "foreign-link": (leave_foreign_link, "cannot be compared"),
    "garbage-index": (leave_garbage_index, "`new.txt`"),
    # Root can read it.
    "unreadable": (leave_unreadable, "cannot store" if os.geteuid() else "untracked"),
}


@pytest.mark.parametrize("kind", LEAVINGS)
def test_removal_refuses_and_force_stores(place, kind):
    """Refused with the reason; forced, every file is in a recovery point or kept aside."""
    leave, reason = LEAVINGS[kind]
    leave(place)
    before = read_tree(place.workspace())
    refusal = place.atoll("rm", "x", code=4).stderr
    assert reason in refusal
    assert "hint: " in refusal
    assert read_tree(place.workspace()) == before
    assert place.names() == ["x"]

    place.atoll("rm", "x", "--force")
    assert place.names() == []
    [point] = place.points()
    if point["files"] is not None:
        assert read_tree(Path(point["files"]) / "workspace") == before
    else:
        place.atoll("recover", "x")
        assert read_tree(place.workspace()) == before
    assert left_processes(place.home) == []


def test_dry_run_tells_and_removes_nothing(place):
    leave_untracked(place)
    assert "untracked" in place.atoll("rm", "x", "--force", "--dry-run").stdout
    assert place.names() == ["x"]
    assert place.refs() == ""


def test_clean_capsule_goes_without_a_word(place):
    place.atoll("rm", "x")
    assert place.points() == []
    assert find_leftovers(place.home, place.repo) == []


def test_ignored_files_are_no_work(place):
    (place.workspace() / "build").mkdir()
    (place.workspace() / "build" / "out.o").write_text("made\n")
    place.atoll("rm", "x")
    assert (place.names(), place.points()) == ([], [])
    assert find_leftovers(place.home, place.repo) == []


def test_commits_on_a_branch_that_stays_are_safe(place):
    """The agent made a branch of its own: that branch is not Atoll's to remove."""
    place.git("checkout", "--quiet", "-b", "feature", cwd=place.workspace())
    commit = place.commit("done.txt", cwd=place.workspace())
    place.atoll("rm", "x")
    assert place.git("rev-parse", "feature").strip() == commit


def test_merged_commits_are_safe(place):
    commit = place.commit("done.txt", cwd=place.workspace())
    place.git("merge", "--quiet", "atoll/x")
    place.atoll("rm", "x")
    assert place.git("rev-parse", "HEAD").strip() == commit


def test_commits_below_a_detached_owner_are_safe(place):
    commit = place.commit("done.txt", cwd=place.workspace())
    place.git("checkout", "--quiet", "--detach", commit)
    place.atoll("rm", "x")
    assert (place.names(), place.points()) == ([], [])
    assert place.git("rev-parse", "HEAD").strip() == commit
    assert (place.repo / "done.txt").exists()


def test_keep_branch(place):
    commit = place.commit("done.txt", cwd=place.workspace())
    place.atoll("rm", "x", "--keep-branch")
    assert place.git("rev-parse", "atoll/x").strip() == commit
    assert place.points() == []
    assert [path.name for path in (place.repo / ".git" / "worktrees").glob("*")] == []


def test_keep_branch_still_refuses_files(place):
    place.commit("done.txt", cwd=place.workspace())
    leave_untracked(place)
    assert "untracked" in place.atoll("rm", "x", "--keep-branch", code=4).stderr


def test_keep_branch_still_refuses_detached_commits(place):
    """The branch that is kept does not hold them."""
    leave_detached_commits(place)
    assert "1 commit" in place.atoll("rm", "x", "--keep-branch", code=4).stderr
    assert (place.workspace() / "detached.txt").read_text() == "detached.txt\n"


def test_submodule_commits(place, make_repo, git, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    library = make_repo({"lib.py": "pass\n"}, name="library")
    place.git("submodule", "add", "--quiet", str(library), "lib")
    place.git("commit", "--quiet", "--message", "submodule")
    place.atoll("new", "y")
    workspace = place.workspace("y")
    place.git("submodule", "update", "--init", "--quiet", cwd=workspace)
    commit = place.commit("inner.txt", cwd=workspace / "lib")
    (workspace / "lib" / "loose.txt").write_text("loose\n")

    assert "`lib`" in place.atoll("rm", "y", code=4).stderr
    place.atoll("rm", "y", "--force")
    [point] = place.points()
    aside = Path(point["files"])
    assert (aside / "workspace" / "lib" / "loose.txt").read_text() == "loose\n"
    found = git(
        f"--git-dir={aside}/modules/lib", "--work-tree=.", "cat-file", "-t", commit, cwd=aside
    )
    assert found == "commit\n"
    assert find_leftovers(place.home, place.repo, living=["x"]) == []


def test_submodule_that_asks_to_be_ignored(place, make_repo, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    library = make_repo({"lib.py": "pass\n"}, name="library")
    place.git("submodule", "add", "--quiet", str(library), "lib")
    place.git("config", "-f", ".gitmodules", "submodule.lib.ignore", "all")
    place.git("commit", "--quiet", "--all", "--message", "submodule")
    place.atoll("new", "y")
    workspace = place.workspace("y")
    place.git("submodule", "update", "--init", "--quiet", cwd=workspace)
    place.commit("inner.txt", cwd=workspace / "lib")
    assert "`lib`" in place.atoll("rm", "y", code=4).stderr


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_changes_that_index_flags_hide(place, flag):
    place.git("update-index", flag, "app.py", cwd=place.workspace())
    (place.workspace() / "app.py").write_text("changed\n")
    before = read_tree(place.workspace())
    assert "app.py" in place.atoll("rm", "x", code=4).stderr
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    assert read_tree(place.workspace()) == before


def leave_everything(place: Place) -> Snapshot:
    """Work of all kinds that git can store, under names that are hard to say."""
    workspace = place.workspace()
    place.commit("committed.txt", cwd=workspace)
    (workspace / "app.py").write_text("staged\n")
    (workspace / "staged new.txt").write_text("staged\n")
    place.git("add", "app.py", "staged new.txt", cwd=workspace)
    (workspace / "app.py").write_text("staged, then changed\n")
    (workspace / "README.md").unlink()
    place.git("rm", "--quiet", "src/calc.py", cwd=workspace)
    (workspace / "committed.txt").chmod(0o755)
    (workspace / "tool").write_text("#!/bin/sh\n")
    (workspace / "tool").chmod(0o755)
    (workspace / "link").symlink_to("tool")
    (workspace / "dangling").symlink_to("/nonexistent/place")
    (workspace / "directory link").symlink_to("src", target_is_directory=True)
    (workspace / "empty").write_bytes(b"")
    (workspace / "binary").write_bytes(bytes(range(256)) * 100)
    (workspace / "crlf.txt").write_bytes(b"one\r\ntwo\n")
    names = ["with space", "two\nlines", " lead and trail ", "-rf", 'quo"te', "snow☃", ":(glob)x"]
    for raw in [*(os.fsencode(name) for name in names), b"not-\xff-utf8", b"back\\slash"]:
        path = os.path.join(os.fsencode(workspace), raw)
        Path(os.fsdecode(path)).write_bytes(b"content of " + raw)
    return place.snapshot()


def test_everything_comes_back_as_it_was(place):
    before = leave_everything(place)
    place.atoll("rm", "x", code=4)
    place.atoll("rm", "x", "--force")
    assert find_leftovers(place.home, place.repo) == []
    place.atoll("recover", "x")
    assert place.snapshot() == before
    assert place.git("symbolic-ref", "HEAD", cwd=place.workspace()).strip() == "refs/heads/atoll/x"
    assert len(place.points()) == 1


def test_attributes_do_not_change_what_is_stored(place):
    workspace = place.workspace()
    (workspace / ".gitattributes").write_text("*.txt text eol=lf\n*.bin -text\n")
    (workspace / "data.bin").write_bytes(b"one\r\ntwo\n")
    before = place.snapshot()
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    assert place.snapshot() == before


def test_recover_twice_under_two_names(place):
    before = leave_everything(place)
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    refused = place.atoll("recover", "x", code=4).stderr
    assert "the capsule `x` already exists" in refused
    place.atoll("recover", "x", "--as", "second")
    assert place.snapshot() == place.snapshot("second") == before
    assert sorted(place.names()) == ["second", "x"]


def test_recover_and_remove_again_and_again(place):
    """The third life is as the first; where the work began is not forgotten."""
    before = leave_everything(place)
    [first] = place.ask("ls")
    for _ in range(2):
        place.atoll("rm", "x", "--force")
        place.atoll("recover", "x")
        assert place.snapshot() == before
        [capsule] = place.ask("ls")
        assert capsule["base_commit"] == first["base_commit"]
    assert len(place.points()) == 2


def test_diff_after_recovery_is_the_diff_before(place):
    leave_commits(place)
    leave_untracked(place)
    before = place.atoll("diff", "x").stdout
    assert "done.txt" in before
    assert "new.txt" in before
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    assert place.atoll("diff", "x").stdout == before


def test_recover_names_what_it_cannot_find(place):
    error = place.atoll("recover", "nothing", code=4).stderr
    assert "there is no recovery point `nothing`" in error


def test_recovered_commits_live_in_the_point_until_it_is_dropped(place):
    leave_commits(place)
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    [point] = place.points()
    place.atoll("recover", point["id"], "--drop")
    assert place.refs() == ""
    assert "1 commit" in place.atoll("rm", "x", code=4).stderr
    assert (place.workspace() / "done.txt").read_text() == "done.txt\n"


def test_recovered_commits_may_go_while_the_point_holds_them(place):
    leave_commits(place)
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    place.atoll("rm", "x")
    assert len(place.points()) == 1


def test_drop_removes_the_files_aside(place):
    leave_nested_repository(place)
    place.atoll("rm", "x", "--force")
    [point] = place.points()
    assert Path(point["files"]).is_dir()
    place.atoll("recover", point["id"], "--drop")
    assert place.points() == []
    assert not Path(point["files"]).exists()


def test_collection_never_touches_recovery_points(place):
    before = leave_everything(place)
    place.atoll("rm", "x", "--force")
    place.atoll("new", "y")
    leave_nested = place.workspace("y") / "vendor"
    leave_nested.mkdir()
    place.git("init", "--quiet", cwd=leave_nested)
    place.commit("inner.txt", cwd=leave_nested)
    place.atoll("rm", "y", "--force")
    refs, points = place.refs(), place.points()
    for _ in range(2):
        place.atoll("gc")
    assert (place.refs(), place.points()) == (refs, points)
    aside = next(Path(point["files"]) for point in points if point["files"])
    assert (aside / "workspace" / "vendor" / "inner.txt").read_text() == "inner.txt\n"
    place.atoll("recover", "x")
    assert place.snapshot() == before


def test_gits_own_collection_keeps_recovery_points(place):
    before = leave_everything(place)
    place.atoll("rm", "x", "--force")
    place.git("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
    place.git("gc", "--quiet", "--prune=now")
    place.git("worktree", "prune")
    place.git("pack-refs", "--all")
    place.atoll("recover", "x")
    assert place.snapshot() == before


def test_work_outlives_the_owners_repository(place):
    before = leave_everything(place)
    away = place.repo.parent / "away"
    (place.repo / ".git").rename(away)
    # It may lie on a disk that is not mounted: only its owner knows.
    assert "hint: atoll gc --gone" in place.atoll("gc").stderr
    assert read_tree(place.workspace()) == before.files
    place.atoll("gc", "--gone", "--dry-run")
    assert read_tree(place.workspace()) == before.files
    place.atoll("gc", "--gone")
    kept = list((place.home / "recovered").glob("x/*/workspace"))
    assert len(kept) == 1
    assert read_tree(kept[0]) == before.files
    assert list(place.home.glob("projects/*/*")) == []
    assert list(place.home.glob("locks/*")) == []


def test_clean_capsule_of_a_lost_repository_is_kept_too(place):
    """Nobody can tell any more what exists elsewhere."""
    before = read_tree(place.workspace())
    shutil.rmtree(place.repo)
    place.repo.mkdir()
    place.atoll("gc", "--gone")
    [kept] = (place.home / "recovered").glob("x/*/workspace")
    assert read_tree(kept) == before


def lose_database(place: Place) -> None:
    """With all from which it could be made again, as if an older Atoll had made the capsules."""
    for path in (*place.home.glob("state.db*"), *place.home.glob("projects/*/*/capsule.json")):
        path.unlink()
    shutil.rmtree(place.home / "backups")


def test_work_outlives_the_database(place):
    before = leave_everything(place)
    lose_database(place)
    place.atoll("gc")
    assert place.names() == []
    [point] = place.points()
    place.atoll("recover", point["id"], "--as", "again")
    assert place.snapshot("again") == before
    assert list(place.home.glob("projects/*/x")) == []


def test_nested_work_outlives_the_database(place):
    leave_nested_repository(place)
    before = read_tree(place.workspace())
    lose_database(place)
    place.atoll("gc")
    [point] = place.points()
    assert read_tree(Path(point["files"]) / "workspace") == before


def test_broken_work_outlives_the_database(place):
    leave_broken_link(place)
    before = read_tree(place.workspace())
    lose_database(place)
    place.atoll("gc")
    [kept] = (place.home / "recovered").glob("x/*/workspace/x")
    assert read_tree(kept) == before


def test_repository_that_was_away_comes_back(place):
    before = leave_everything(place)
    away = place.repo.parent / "away"
    place.repo.rename(away)
    place.repo.mkdir()
    place.atoll("gc")
    place.repo.rmdir()
    away.rename(place.repo)
    assert place.names() == ["x"]
    assert place.snapshot() == before


@pytest.fixture
def ended(atoll_home):
    """Ends what a test could not."""
    yield
    for pid in processes_of(atoll_home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_running_work_outlives_the_database(place, wait_for, ended):
    """A run without a record is ended before its files are stored."""
    script = "while true; do date +%s%N >> log.txt; sleep 0.05; done"
    place.atoll("run", "x", "-d", "--", "sh", "-c", script)
    wait_for((place.workspace() / "log.txt").exists, what="the run")
    lose_database(place)
    place.atoll("gc")
    assert left_processes(place.home) == []
    assert list(place.home.glob("locks/*")) == []
    [point] = place.points()
    place.atoll("recover", point["id"], "--as", "again")
    assert re.match(rb"\d+\n", (place.workspace("again") / "log.txt").read_bytes())


def test_damaged_database_is_reported_and_restored(place):
    before = leave_everything(place)
    for path in place.home.glob("state.db-*"):
        path.unlink()
    (place.home / "state.db").write_bytes(b"not a database at all" * 100)
    error = place.atoll("ls", code=4).stderr
    assert "hint: atoll gc " in error
    place.atoll("gc")
    assert place.names() == ["x"]
    assert place.snapshot() == before


def test_repository_without_a_commit(atoll_home, make_repo, atoll):
    """There is nothing to make a capsule of, and nothing is left of the attempt."""
    empty = make_repo({}, name="empty")
    done = atoll("new", "x", cwd=empty, check=False)
    assert done.returncode == 4
    assert "has no commit yet" in done.stderr
    assert list(atoll_home.glob("projects/*/*")) == []
    assert subprocess.run(["git", "worktree", "list"], cwd=empty, check=False).returncode == 0


def test_empty_tree(atoll_home, make_repo, atoll, git):
    """A repository whose one commit holds no file."""
    empty = make_repo({}, name="empty")
    git("commit", "--quiet", "--allow-empty", "--message", "start", cwd=empty)
    place = Place(atoll_home, empty, atoll, git)
    place.atoll("new", "x")
    leave_untracked(place)
    before = place.snapshot()
    place.atoll("rm", "x", code=4)
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    assert place.snapshot() == before


def test_all_files_deleted(place):
    """An empty workspace is work too, unless it was removed whole."""
    for entry in place.workspace().iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    before = place.snapshot()
    assert "uncommitted" in place.atoll("rm", "x", code=4).stderr
    place.atoll("rm", "x", "--force")
    place.atoll("recover", "x")
    assert place.snapshot() == before


def test_workspace_removed_by_hand(place):
    commit = place.commit("done.txt", cwd=place.workspace())
    shutil.rmtree(place.workspace())
    assert "1 commit" in place.atoll("rm", "x", code=4).stderr
    place.atoll("rm", "x", "--force")
    assert find_leftovers(place.home, place.repo) == []
    place.atoll("recover", "x")
    assert place.git("rev-parse", "HEAD", cwd=place.workspace()).strip() == commit


def test_removal_of_many_is_all_or_none(place):
    place.atoll("new", "y")
    leave_untracked(place)
    place.atoll("rm", "y", "x", code=4)
    assert sorted(place.names()) == ["x", "y"]
