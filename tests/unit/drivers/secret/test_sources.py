from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.drivers import registry
from atoll.drivers.contracts import SourceRequest
from atoll.drivers.secret import sources
from atoll.host.process import wait_until
from atoll.model.errors import PrerequisiteError, SecretUnavailable

CANARY = "canary-8d2b"
LARGE = sources.LIMIT_BYTES + 1


@pytest.fixture
def owner(tmp_path):
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TOKEN": CANARY}


def read(kind, of, owner, root=""):
    request = SourceRequest(str(of), owner, str(root), owner["PATH"])
    return registry.secret_source(kind).read(request)


def refused(kind, of, owner, root=""):
    with pytest.raises(SecretUnavailable) as caught:
        read(kind, of, owner, root)
    assert CANARY not in caught.value.message + str(caught.value.hint)
    return caught.value


def test_unknown_source():
    with pytest.raises(PrerequisiteError, match="no driver `nonsense` for secret-source"):
        registry.secret_source("nonsense")


def test_variable(owner):
    assert read("env", "TOKEN", owner) == CANARY.encode()
    assert read("env", "RAW", {**owner, "RAW": "\udcff"}) == b"\xff"
    assert "`NONE` is not set" in refused("env", "NONE", owner).message
    assert "larger than 64 KiB" in refused("env", "BIG", {**owner, "BIG": "x" * LARGE}).message


def test_file(owner, tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{CANARY}\n")
    assert read("file", path, owner) == f"{CANARY}\n".encode()
    (tmp_path / "link").symlink_to(path)
    assert read("file", tmp_path / "link", owner), "dotfiles are often links"
    assert "No such file" in refused("file", tmp_path / "none", owner).message


def test_special_files(owner, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b"x" * LARGE)
    for place in (tmp_path / "fifo", tmp_path, tmp_path / "big", "/dev/zero"):
        assert "not a regular file of at most 64 KiB" in refused("file", place, owner).message


def test_no_link_in_the_project_is_followed(owner, tmp_path):
    """An agent's work may have brought it there."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "key").write_text("private")
    (root / ".env").write_text("fine")
    (root / "leaf").symlink_to("../key")
    (root / "way").symlink_to("..")
    assert read("file", root / ".env", owner, root) == b"fine"
    for place in (root / "leaf", root / "way" / "key", root / "sub", root / "none"):
        assert "not a regular file" in refused("file", place, owner, root).message


def test_command(owner, tmp_path):
    assert read("command", 'echo "$TOKEN"; pwd', owner) == f"{CANARY}\n{tmp_path}\n".encode()
    assert read("command", "cat", owner) == b"", "standard input is empty"


def test_failing_command_is_not_quoted(owner):
    error = refused("command", 'echo "$TOKEN"; echo "$TOKEN" >&2; exit 7', owner)
    assert error.message.endswith("failed with exit code 7")


def test_command_that_prints_too_much(owner):
    assert "prints more than 64 KiB" in refused("command", "cat /dev/zero", owner).message
    error = refused("command", "head -c 10000000 /dev/zero >&2; echo", owner)
    assert "prints more than 64 KiB" in error.message


def test_command_that_hangs_is_killed_as_a_whole(owner, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_COMMAND_S", 0.5)
    script = "sleep 600 & echo $! >pid; sleep 600"
    assert "did not end within" in refused("command", script, owner).message
    pid = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: has_ended(pid), timeout_s=20)


def has_ended(pid):
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return content.rpartition(")")[2].split()[0] in ("Z", "X")


def test_background_process_that_keeps_the_output_open(owner, monkeypatch):
    monkeypatch.setattr(sources, "_COMMAND_S", 0.5)
    assert "did not end within" in refused("command", "sleep 600 & echo x", owner).message


def test_command_runs_no_program_of_the_project(owner, tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "tool").write_text("#!/bin/sh\necho planted\n")
    (root / "tool").chmod(0o755)
    path = f"{root}:.:{owner['PATH']}"
    request = SourceRequest("tool", owner, str(root), path)
    with pytest.raises(SecretUnavailable, match="failed with exit code 127"):
        registry.secret_source("command").read(request)


def test_keyring_without_a_backend(owner):
    import keyring  # noqa: PLC0415 - slow
    from keyring.backends import fail  # noqa: PLC0415 - slow

    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    try:
        assert "cannot be reached" in refused("keyring", "service/user", owner).message
    finally:
        keyring.set_keyring(before)
