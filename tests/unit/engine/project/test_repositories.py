"""Clones of repositories that are not trusted."""

from __future__ import annotations

import os
import re
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


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:c4n4ry@example.org/x",
        "https://ada:c4n4ry@more@example.org/x",
        "https://ada:c4n/4ry@example.org/x",
        "https://:c4n4ry@example.org/x",
        "https://ghp_c4n4ry0123456789abcdef012345@example.org/x",
        "ssh://ada:c4n4ry@example.org/x",
        "http://ada:c4n4ry@example.org/x",
        " https://ada:c4n4ry@example.org/x y",
    ],
)
def test_password_in_a_url_is_refused_and_not_repeated(owner, url):
    with pytest.raises(SpecError, match="password") as caught:
        ensure_clone(owner, url)
    assert not {"c4n4ry", "4ry", "c4n"} & set(re.split(r"[^a-z0-9]+", str(caught.value)))
    assert "example.org" in caught.value.message
    assert not (owner.home / "repositories").exists()


@pytest.mark.parametrize(
    "url",
    ["https://git@127.0.0.1:9/x", "ssh://git@127.0.0.1:9/x", "https://127.0.0.1:9/@ada/x@2"],
)
def test_user_name_in_a_url_is_no_password(owner, url):
    with pytest.raises(DriverError, match="could not be cloned"):
        ensure_clone(owner, url)
