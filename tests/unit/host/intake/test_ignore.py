"""What is ignored: as `git status` decides, by the owner's excludes, whatever the agent planted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.host.intake import ignore as ignoring
from atoll.host.intake.ignore import Ignore, is_git_name
from atoll.host.intake.store import OwnerSettings, load_settings
from atoll.model.untrusted import InsidePath
from readers import DirectoryReader


@pytest.fixture
def opened(repo, tmp_path):
    """`opened(settings)`: an `Ignore` of the repository's work tree."""
    made = []

    def make(settings: OwnerSettings | None = None) -> Ignore:
        scratch = tmp_path / "scratch"
        made.append(Ignore(DirectoryReader(repo), settings or OwnerSettings(), scratch=scratch))
        return made[-1].__enter__()

    yield make
    for one in made:
        one.__exit__()
    assert not (tmp_path / "scratch").exists() or list((tmp_path / "scratch").iterdir()) == []


def walk(ignore: Ignore, root: Path) -> set[str]:
    """Every file that is not ignored, asked level by level."""
    level = [InsidePath(os.fsencode(name)) for name in os.listdir(root) if name != ".git"]
    shown = set()
    while level:
        kinds = [(path, os.path.isdir(os.path.join(os.fsencode(root), path.raw))) for path in level]
        out = ignore.ignored(kinds)
        shown |= {os.fsdecode(p.raw) for p, is_dir in kinds if p not in out and not is_dir}
        level = [
            path.child(name)
            for path, is_dir in kinds
            if is_dir and path not in out
            for name in os.listdir(os.path.join(os.fsencode(root), path.raw))
        ]
    return shown


def fill(repo, files):
    for name, content in files.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


FILES = {
    ".gitignore": "build/\n*.log\n!keep.log\n/top\n# no\n\\!odd\nline\\ space\n",
    "build/a.o": "x", "x/build/b.o": "x", "x/build": None, "a.log": "x", "keep.log": "x",
    "x/keep.log": "x", "x/y/z.log": "x", "top": "x", "x/top": "x", "!odd": "x", "line space": "x",
    "x/.gitignore": "secret\n!z.log\n**/deep/*.txt\n", "x/secret": "x", "x/q/secret": "x",
    "x/q/deep/a.txt": "x", "x/q/deep/a.c": "x", "x/q/.gitignore": "!secret\n",
    "files/build": "not a directory", ":(glob)magic": "x", ":!x": "x", "*star": "x", "é\n\"'": "x",
}  # fmt: skip


def test_agrees_with_git(repo, git, opened):
    fill(repo, {name: text for name, text in FILES.items() if text is not None})
    (repo / "excluded-by-owner").write_text("x")
    (repo / "personal.bak").write_text("x")
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "exclude").write_text("excluded-by-owner\n")
    personal = repo.parent / "personal"
    personal.write_text("*.bak\n")
    git("config", "core.excludesFile", str(personal), cwd=repo)
    expected = set(
        git("ls-files", "-z", "--others", "--cached", "--exclude-standard", cwd=repo).split("\0")
    ) - {""}
    ignore = opened(load_settings(str(repo / ".git")))
    shown = walk(ignore, repo)
    assert shown == expected
    assert ignore.failure is None
    assert "excluded-by-owner" not in shown
    assert "personal.bak" not in shown
    assert "files/build" in shown


def test_excludes_of_the_agent_have_no_say(repo, git, opened):
    """The settings are those of the owner's repository; a `.git` in the work tree is not read."""
    (repo / ".git" / "info").mkdir(exist_ok=True)
    (repo / ".git" / "info" / "exclude").write_text("*\n")
    (repo / "new.txt").write_text("x")
    assert git("status", "--short", cwd=repo) == ""
    assert not opened().ignored([(InsidePath(b"new.txt"), False)])


def test_links_and_large_files_do_not_count(repo, tmp_path, opened):
    (tmp_path / "patterns").write_text("*\n")
    (repo / ".gitignore").unlink()
    (repo / ".gitignore").symlink_to(tmp_path / "patterns")
    (repo / "sub").mkdir()
    (repo / "sub" / ".gitignore").write_text("*\n" + "#" * (1 << 20))
    (repo / "fifo").mkdir()
    os.mkfifo(repo / "fifo" / ".gitignore")
    ignore = opened()
    for name in (b"a", b"sub/a", b"fifo/a"):
        assert not ignore.ignored([(InsidePath(name), False)])
    (repo / "control").mkdir()
    (repo / "control" / ".gitignore").write_text("*\n")
    assert ignore.ignored([(InsidePath(b"control/a"), False)])


@pytest.mark.parametrize(
    "name",
    [b".git", b".GIT", b".git ", b".git.", b"git~1", ".g\u200cit".encode(), b".git::$INDEX"],
)
def test_no_git_name_is_made(opened, name, tmp_path):
    assert is_git_name(name)
    ignore = opened()
    assert ignore.ignored([(InsidePath(name), True), (InsidePath(name + b"/hooks/x"), False)]) == (
        set()
    )
    staging = next((tmp_path / "scratch").iterdir()) / "staging"
    assert list(staging.rglob("*")) == []


@pytest.mark.parametrize("name", [b".gitignore", b"git", b".github", b"x.git", b".gitmodules"])
def test_ordinary_names_are_no_git_names(name):
    assert not is_git_name(name)


def test_directory_called_gitignore(repo, opened):
    (repo / "odd" / ".gitignore").mkdir(parents=True)
    ignore = opened()
    asked = [(InsidePath(b"odd/.gitignore"), True), (InsidePath(b"odd/.gitignore/x"), False)]
    assert ignore.ignored(asked) == set()
    assert ignore.failure is None


def test_patterns_that_take_for_ever_hide_nothing(repo, opened, monkeypatch):
    monkeypatch.setattr(ignoring, "_TIMEOUT_S", 0.3)
    (repo / ".gitignore").write_text("**/".join(["*a"] * 40) + "b\n" + "*\n")
    path = InsidePath(b"/".join([b"a" * 40] * 60))
    ignore = opened()
    found = ignore.ignored([(path, False)])
    # Git may become faster one day; either way there is an answer.
    assert found or ignore.failure is not None


def test_long_paths_are_shown(opened):
    assert not opened().ignored([(InsidePath(b"/".join([b"x" * 200] * 20)), False)])


def test_one_program_for_a_level(repo, opened, monkeypatch):
    from atoll.host import process  # noqa: PLC0415

    heard: list[str] = []
    ignore = opened()
    monkeypatch.setattr(process, "on_command", heard.append)
    ignore.ignored([(InsidePath(b"d%d/f" % number), False) for number in range(300)])
    assert len(heard) == 1
