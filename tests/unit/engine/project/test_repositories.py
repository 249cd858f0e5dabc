"""Clones of repositories that are not trusted."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.engine.project.repositories import _reason, ensure_clone
from atoll.model.errors import DriverError, SpecError


@pytest.fixture
def owner(tmp_path):
    (tmp_path / "home" / "locks").mkdir(mode=0o700, parents=True)
    return SimpleNamespace(home=tmp_path / "home", owner=dict(os.environ), warn=pytest.fail)


def test_filters_of_the_owner_do_not_run(owner, repo, git, tmp_path, monkeypatch):
    canary, url = tmp_path / "canary", f"file://{repo}"

    def commit(text: str) -> None:
        (repo / ".gitattributes").write_text("* filter=own.x\n")
        (repo / "file").write_text(text)
        git("add", ".", cwd=repo)
        git("commit", "--quiet", "--message", text.strip(), cwd=repo)

    commit("one\n")
    settings = tmp_path / "gitconfig"
    before = Path(os.environ.get("GIT_CONFIG_GLOBAL") or Path.home() / ".gitconfig").read_text()
    filters = f'[filter "own.x"]\n\tclean = cat\n\tsmudge = "touch \'{canary}\'; cat"\n'
    settings.write_text(f"{before}\n{filters}")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    # Atoll's git has an environment of its own.
    (tmp_path / ".gitconfig").write_text(settings.read_text())
    monkeypatch.setenv("HOME", str(tmp_path))
    place = ensure_clone(owner, url)
    commit("two\n")
    canary.unlink(missing_ok=True)
    assert ensure_clone(owner, url) == place
    assert (place / "file").read_text() == "two\n"
    assert not canary.exists()
    git("clone", "--quiet", url, tmp_path / "control", cwd=tmp_path)
    assert canary.exists()


SSH = """ssh: Could not resolve hostname h: Temporary failure\r
fatal: Could not read from remote repository.

Please make sure you have the rights"""


@pytest.mark.parametrize(("said", "reason"), [
    ("fatal: unable to access 'https://h/': Could not resolve host", "Could not resolve host"),
    (SSH, "Could not resolve hostname h: Temporary failure"),
    ("fatal: repository '/nope' does not exist", "repository '/nope' does not exist"),
])  # fmt: skip
def test_reason_of_a_failed_clone(said, reason):
    assert _reason(f"`git clone --quiet` failed with exit code 128: {said}") == reason


def test_failed_clone_names_the_cause(owner, tmp_path):
    with pytest.raises(
        DriverError, match=r"^`file:///.*nope` could not be cloned: .*nope'"
    ) as raised:
        ensure_clone(owner, f"file://{tmp_path}/nope")
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    "url", ["ext::sh -c true", "-u://x", "http://x/y", "file:///x --upload-pack=y"]
)
def test_url_that_is_not_cloned(owner, url):
    with pytest.raises(SpecError):
        ensure_clone(owner, url)
