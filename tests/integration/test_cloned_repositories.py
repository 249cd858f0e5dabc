"""Capsules of a repository that was cloned from a URL: the owner's filters do not run on it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll import open_project
from atoll.engine.project.repositories import ensure_clone


@pytest.fixture
def clone(repo, git, atoll_home, tmp_path, monkeypatch):
    """`clone(CANARY)`: a clone of a repository all of whose files have the filter `own`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(Path(os.environ["GIT_CONFIG_GLOBAL"]).read_text())
    (repo / ".gitattributes").write_text("* filter=own\n")
    git("add", ".", cwd=repo)
    git("commit", "--quiet", "--message", "attributes", cwd=repo)
    (atoll_home / "locks").mkdir(mode=0o700, parents=True)
    session: Any = SimpleNamespace(home=atoll_home, owner=dict(os.environ), warn=pytest.fail)
    return lambda: ensure_clone(session, f"file://{repo}")


def add_filter(git, tmp_path):
    """Installs a filter for all repositories of the owner's; returns the canary that it writes."""
    canary = tmp_path / "canary"
    program = f"touch '{canary}'; cat"
    text = f'[filter "own"]\n\tclean = "{program}"\n\tsmudge = "{program}"\n\trequired = true\n'
    for path in (tmp_path / ".gitconfig", Path(os.environ["GIT_CONFIG_GLOBAL"])):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    return canary


@pytest.mark.parametrize("level", ["worktree", "clone", "sandbox"])
@pytest.mark.parametrize("is_late", [False, True])
def test_filters_do_not_run_when_the_base_is_frozen(
    clone, git, tmp_path, monkeypatch, level, is_late
):
    monkeypatch.setenv("ATOLL_LEVEL", level)
    canary = None if is_late else add_filter(git, tmp_path)
    place = clone()
    canary = canary or add_filter(git, tmp_path)
    project = open_project(place, background=False)
    capsule = project.new("x")
    assert not canary.exists()
    done = capsule.run(["cat", "app.py"])
    assert done.exit_code == 0
    capsule.remove(force=True)
    assert not canary.exists()
    # The filter is one that runs on the owner's own repositories.
    git("clone", "--quiet", place, tmp_path / "control", cwd=tmp_path)
    assert canary.exists()
