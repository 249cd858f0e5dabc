"""What a removal costs: programs are counted, because time says little on a busy machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.host import git as host_git
from atoll.host import process, ref_files
from atoll.model.errors import DriverError

COMMIT = "git -c user.name=a -c user.email=a@b commit --quiet --message y"


@pytest.fixture
def owned(repo, git, tmp_path):
    (repo / ".gitignore").write_text("*.log\n")
    (repo / "gone").write_text("gone\n")
    git("add", "--all", cwd=repo)
    git("commit", "--quiet", "--message", "more", cwd=repo)

    def atoll(*args: str, trace=None) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "atoll", *args]
        if trace is not None:
            argv = ["strace", "-f", "-e", "trace=execve", "-o", str(trace), *argv]
        env = {**os.environ, "ATOLL_HOME": str(tmp_path / "home")}
        return subprocess.run(argv, check=False, cwd=repo, env=env, capture_output=True, text=True)

    return atoll


def programs(trace) -> list[str]:
    return re.findall(r"^.*execve\(.*= 0$", trace.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    ("level", "work", "flags", "code", "most"),
    [
        ("clone", "echo new >new; echo x >x.log", ["--force"], 0, 8),
        ("clone", "echo changed >app.py; rm gone", ["--force"], 0, 7),
        ("clone", "echo changed >app.py; git add app.py; echo more >>app.py", ["--force"], 0, 8),
        ("clone", f"echo changed >app.py; git add app.py; {COMMIT}; echo more >>app.py",
         ["--force"], 0, 8),
        ("clone", "git status; echo x >x.log", [], 0, 6),
        ("clone", "echo new >new", [], 4, 4),
        ("worktree", "git status", [], 0, 7),
        ("worktree", "echo changed >app.py", ["--force"], 0, 9),
    ],
    ids=["untracked", "modified", "staged", "committed", "nothing", "refused",
         "worktree", "worktree-modified"],
)  # fmt: skip
def test_removal_starts_few_programs(owned, tmp_path, level, work, flags, code, most):
    trace = tmp_path / "trace"
    assert owned("new", "x", "--level", level).returncode == 0
    assert owned("run", "x", "--", "sh", "-c", work).returncode == 0
    done = owned("rm", *flags, "x", trace=trace)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    started = programs(trace)
    if code == 4:
        assert owned("rm", "--force", "x").returncode == 0
    assert done.returncode == code, done.stderr
    assert len(started) <= most, "\n".join(started)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_removal_of_several_looks_at_each_once(owned, tmp_path):
    trace = tmp_path / "trace"
    for name in ("x", "y"):
        assert owned("new", name, "--level", "clone").returncode == 0
        assert owned("run", name, "--", "sh", "-c", "git status; echo x >x.log").returncode == 0
    done = owned("rm", "x", "y", trace=trace)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    asked = [line for line in programs(trace) if "check-ignore" in line]
    assert len(asked) == 2, "\n".join(asked)


def test_removal_of_several_is_all_or_none(owned):
    for name in ("x", "y"):
        assert owned("new", name, "--level", "clone").returncode == 0
    assert owned("run", "y", "--", "sh", "-c", "echo new >new").returncode == 0
    assert owned("rm", "x", "y").returncode == 4
    assert owned("ls", "--json").stdout.count('"name"') == 2
    assert owned("rm", "x", "y", "--force").returncode == 0


def test_recovery_point_is_whole_and_sound(owned, repo, git):
    """What the process writes itself is what git would have written."""
    assert owned("new", "x", "--level", "clone").returncode == 0
    work = "mkdir -p a/b; echo deep >a/b/c; echo sh >run; chmod +x run; ln -s run link; rm gone"
    assert owned("run", "x", "--", "sh", "-c", work).returncode == 0
    done = owned("rm", "--force", "x")
    assert done.returncode == 0, done.stderr
    (line,) = git("for-each-ref", "refs/atoll/recovery", cwd=repo).splitlines()
    commit = line.split(" ", 1)[0]
    git("fsck", "--full", "--strict", cwd=repo)
    listed = git("ls-tree", "-r", commit, cwd=repo)
    assert re.search(r"^100755 blob \w+\trun$", listed, re.MULTILINE)
    assert re.search(r"^120000 blob \w+\tlink$", listed, re.MULTILINE)
    assert "\tgone" not in listed
    assert git("show", f"{commit}:a/b/c", cwd=repo) == "deep\n"
    assert git("log", "-1", "--format=%an <%ae>", commit, cwd=repo) == "Atoll <atoll@localhost>\n"


def test_refs_are_read_from_their_files(repo, git, monkeypatch):
    """Loose, packed, symbolic and absent refs, as git says; other storage is left to git."""
    store = str(repo / ".git")
    git("tag", "-a", "-m", "t", "v1", cwd=repo)
    git("branch", "packed", cwd=repo)
    git("pack-refs", "--all", cwd=repo)
    git("branch", "loose", cwd=repo)
    heard: list[str] = []
    monkeypatch.setattr(process, "on_command", heard.append)
    tip = git("rev-parse", "HEAD", cwd=repo).strip()
    for name in ("packed", "loose", "main"):
        assert host_git.find_ref(f"refs/heads/{name}", cwd=store) == tip
    assert host_git.find_ref("refs/heads/none", cwd=store) is None
    assert ref_files.find_head(str(repo), store) == tip
    below = ("refs/heads/", "refs/tags/")
    assert set(ref_files.values(store, below=below, without=None)) == {tip}
    host_git.move_ref("refs/atoll/recovery/x/1", tip, old=None, cwd=store)
    host_git.delete_ref("refs/heads/loose", cwd=store)
    assert heard == []
    assert git("rev-parse", "refs/atoll/recovery/x/1", cwd=repo).strip() == tip
    assert "loose" not in git("branch", cwd=repo)
    # It is in the packed file: only git can take it out of there.
    host_git.delete_ref("refs/heads/packed", cwd=store)
    assert "packed" not in git("branch", cwd=repo)
    with pytest.raises(ref_files.UnusualError):
        ref_files.find_ref(str(repo), "refs/heads/main")
    assert host_git.find_ref("refs/heads/main", cwd=str(repo)) == tip


def test_a_deleted_ref_does_not_come_back_from_a_pack(repo, git, monkeypatch):
    """`git pack-refs` reads the ref before it is deleted and writes `packed-refs` after that."""
    store, ref = repo / ".git", "refs/heads/loose"
    git("branch", "loose", cwd=repo)
    tip = git("rev-parse", ref, cwd=repo).strip()
    (store / "packed-refs.lock").touch()
    with pytest.raises(ref_files.UnusualError):
        ref_files.delete_ref(str(store), ref)
    (store / "packed-refs.lock").unlink()
    with pytest.raises(DriverError):
        host_git.delete_ref(ref, cwd=str(store), old="1" * 40)
    assert host_git.find_ref(ref, cwd=str(store)) == tip
    unlink = Path.unlink

    def unlink_late(path: Path, *, missing_ok: bool = False) -> None:
        if path == store / ref:
            git("pack-refs", "--all", "--no-prune", cwd=repo)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    host_git.delete_ref(ref, cwd=str(store), old=tip)
    assert "loose" not in git("for-each-ref", cwd=repo)
