from __future__ import annotations

import os
import threading

import pytest

from atoll.host import git as host
from atoll.model.errors import DriverError, StateError

ODD = 'it\'s "odd"\n é -x'


@pytest.fixture
def head(repo, git):
    return git("rev-parse", "HEAD", cwd=repo).strip()


def test_checkout_is_found_from_anywhere_inside(repo):
    for place in (repo, repo / "src"):
        found = host.find_checkout(str(place))
        assert (found.root, found.repository) == (str(repo), str(repo / ".git"))


def test_path_with_anything_in_it(make_repo):
    root = make_repo(name=ODD)
    found = host.find_checkout(str(root / "src"))
    assert (found.root, found.repository) == (str(root), str(root / ".git"))
    assert host.find_commit("HEAD", cwd=found.root)


def test_linked_worktree_belongs_to_its_repository(repo, git, tmp_path):
    git("worktree", "add", "--quiet", "--detach", tmp_path / "linked", cwd=repo)
    found = host.find_checkout(str(tmp_path / "linked"))
    assert (found.root, found.repository) == (str(tmp_path / "linked"), str(repo / ".git"))


def test_no_repository_is_reported_with_a_fix(tmp_path, atoll_home):
    with pytest.raises(StateError) as caught:
        host.find_checkout(str(tmp_path))
    assert str(caught.value.hint).startswith("git init")
    with pytest.raises(StateError, match="nothing"):
        host.find_checkout(str(tmp_path / "nothing"))


def test_bare_repository_is_refused(repo, git, tmp_path):
    git("clone", "--quiet", "--bare", repo, tmp_path / "bare.git", cwd=tmp_path)
    with pytest.raises(StateError, match="need a checkout"):
        host.find_checkout(str(tmp_path / "bare.git"))
    with pytest.raises(StateError, match=r"inside a `\.git` directory"):
        host.find_checkout(str(repo / ".git"))


def test_message_shows_an_odd_path_harmlessly(tmp_path, atoll_home):
    place = tmp_path / "\x1b[2J\n"
    place.mkdir()
    with pytest.raises(StateError) as caught:
        host.find_checkout(str(place))
    assert caught.value.message.isprintable()


def test_damaged_repository_is_not_called_missing(repo):
    (repo / ".git" / "config").write_text("[core\nbroken")
    with pytest.raises(DriverError, match="bad config"):
        host.find_checkout(str(repo))


def test_commit_by_every_usual_name(repo, git, head):
    git("tag", "-a", "v1", "-m", "x", cwd=repo)
    for ref in ("HEAD", "main", "refs/heads/main", head, head[:10], "v1", "@", "HEAD~0"):
        assert host.find_commit(ref, cwd=str(repo)) == head


@pytest.mark.parametrize(
    "ref",
    [
        "--upload-pack=touch PWNED",
        "--output=PWNED",
        "-h",
        "--help",
        "--all",
        "--git-dir",
        "-",
        "--",
        "",
        " ",
        "nothing",
        "HEAD~999",
        "HEAD:README.md",
        "main..main",
        "main main",
        "HEAD\nmain",
        "HEAD\0",
        "\x1b[2J",
        "^main",
        "main^{tree}",
        "0" * 40,
        "x" * 5000,
        "$(touch PWNED)",
        "`touch PWNED`",
        "../../etc/passwd",
    ],
)
def test_odd_refs_name_no_commit(repo, ref):
    assert host.find_commit(ref, cwd=str(repo)) is None
    assert not (repo / "PWNED").exists()


def test_ambiguous_name_is_no_answer(repo, git, head):
    git("tag", "twin", "HEAD~1", cwd=repo)
    git("branch", "twin", "HEAD", cwd=repo)
    assert host.find_commit("twin", cwd=str(repo)) is None
    assert host.find_commit("heads/twin", cwd=str(repo)) == head


def test_branch_called_head_hides_no_head(repo, git, head):
    git("update-ref", "refs/heads/HEAD", "HEAD~1", cwd=repo)
    assert host.find_commit("HEAD", cwd=str(repo)) == head


def test_branch_that_looks_like_an_option(repo, git, head):
    git("update-ref", "refs/heads/-h", "HEAD", cwd=repo)
    assert host.find_commit("-h", cwd=str(repo)) is None
    assert host.find_commit("refs/heads/-h", cwd=str(repo)) == head


def test_repository_without_a_commit(make_repo):
    root = make_repo(files={})
    assert host.find_commit("HEAD", cwd=str(root)) is None
    assert host.find_ref("refs/heads/main", cwd=str(root)) is None
    assert host.tracked(cwd=str(root)) == []


def test_full_ref_is_taken_by_its_word(repo, git, head):
    assert host.find_ref("refs/heads/main", cwd=str(repo)) == head
    assert host.find_ref("refs/heads/nothing", cwd=str(repo)) is None
    # Git also looks for `refs/tags/refs/heads/…` when a name is not found: not what was asked.
    git("update-ref", "refs/tags/refs/heads/nothing", "HEAD", cwd=repo)
    assert host.find_ref("refs/heads/nothing", cwd=str(repo)) is None


def test_ref_is_made_once(repo, git, head):
    before = git("rev-parse", "HEAD~1", cwd=repo).strip()
    assert host.create_ref("refs/heads/new", before, cwd=str(repo))
    assert not host.create_ref("refs/heads/new", head, cwd=str(repo))
    assert host.find_ref("refs/heads/new", cwd=str(repo)) == before


def test_ref_that_cannot_be_made_is_a_failure(repo, head):
    with pytest.raises(DriverError):
        host.create_ref("refs/heads/main/below", head, cwd=str(repo))
    with pytest.raises(DriverError):
        host.create_ref("refs/heads/a..b", head, cwd=str(repo))


def test_refs_below_a_prefix(repo, head):
    for name in ("x/1", "x/2", "xy"):
        host.create_ref(f"refs/atoll/recovery/{name}", head, cwd=str(repo))
    found = host.refs_below("refs/atoll/recovery/x/", cwd=str(repo))
    assert found == [
        ("refs/atoll/recovery/x/1", head),
        ("refs/atoll/recovery/x/2", head),
    ]
    assert host.refs_below("refs/nothing/", cwd=str(repo)) == []


def test_where_a_branch_is_checked_out(repo, git, tmp_path):
    place = tmp_path / "two\nlines"
    git("worktree", "add", "--quiet", "-b", "side", place, cwd=repo)
    assert host.checked_out_at("side", cwd=str(repo)) == str(place)
    assert host.checked_out_at("main", cwd=str(place)) == str(repo)
    assert host.checked_out_at("sid", cwd=str(repo)) is None


@pytest.fixture
def half_made(repo, git, tmp_path):
    """The record of a worktree at the moment when another git has begun to write it."""
    git("worktree", "add", "--quiet", "-b", "side", tmp_path / "side", cwd=repo)
    path = repo / ".git" / "worktrees" / "side" / "commondir"
    content = path.read_bytes()
    path.write_bytes(b"")
    return path, content


def test_worktree_that_is_being_made_is_waited_for(repo, half_made):
    path, content = half_made
    timer = threading.Timer(0.2, path.write_bytes, [content])
    timer.start()
    assert host.checked_out_at("main", cwd=str(repo)) == str(repo)
    timer.join()


def test_worktree_that_stays_half_made_is_a_failure(repo, half_made, monkeypatch):
    monkeypatch.setattr(host, "_HALF_MADE_S", 0.1)
    with pytest.raises(DriverError, match="commondir"):
        host.checked_out_at("main", cwd=str(repo))


def test_setting_that_is_missing_is_empty(repo):
    assert host.setting("user.name", cwd=str(repo)) == "Test Owner"
    assert host.setting("user.nothing", cwd=str(repo)) == ""


def test_tracked_files_by_their_real_names(make_repo):
    root = make_repo(files={"a b": "", "line\nbreak": "", "é": ""}, name="odd")
    assert sorted(host.tracked(cwd=str(root))) == ["a b", "line\nbreak", "é"]


def test_version_is_comparable():
    assert host.version() >= (2, 20, 0)


def test_settings_of_the_repository_start_no_program(repo, git, tmp_path):
    trace = tmp_path / "trace"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch '{trace}'\n")
    script.chmod(0o755)
    git("config", "core.fsmonitor", script, cwd=repo)
    git("config", "core.hooksPath", tmp_path / "hooks", cwd=repo)
    (tmp_path / "hooks").mkdir()
    for name in ("reference-transaction", "post-index-change", "pre-commit", "post-commit"):
        (tmp_path / "hooks" / name).symlink_to(script)
    (repo / "new").write_text("x")
    host.git("status", "--porcelain", cwd=str(repo))
    host.git("add", "--all", cwd=str(repo))
    host.git("commit", "--quiet", "-m", "x", cwd=str(repo))
    assert not trace.exists()
    host.git("update-ref", "refs/heads/quiet", "HEAD", cwd=str(repo))
    assert not trace.exists()
    # The control.
    git("update-ref", "refs/heads/loud", "HEAD", cwd=repo)
    assert trace.exists()


def test_owner_cannot_be_asked_for_a_password(repo, monkeypatch):
    monkeypatch.setenv("GIT_ASKPASS", "/bin/echo")
    heard = host.git("var", "-l", cwd=str(repo)).text
    assert "GIT_ASKPASS" not in heard
    assert "GIT_DIR" not in os.environ
