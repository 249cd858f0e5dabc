"""`--status-fd`: one JSON object about how a run ended, for the verbs that exit with its code."""

from __future__ import annotations

import json
import os
import tempfile

import pytest


@pytest.fixture
def status(atoll, repo):
    """`status(*args)`: the exit code, and the object on the descriptor (None if it got nothing)."""
    atoll("new", "x", "--level", "none", cwd=repo)

    def run(verb, *args):
        with tempfile.TemporaryFile() as file:
            fd = file.fileno()
            done = atoll(verb, "--status-fd", str(fd), *args, cwd=repo, check=False, pass_fds=(fd,))
            file.seek(0)
            content = file.read()
        return done.returncode, json.loads(content) if content else None

    return run


def test_a_run_that_ended(status):
    code, told = status("run", "x", "--", "sh", "-c", "exit 3")
    assert (code, told["version"], told["kind"]) == (3, 1, "run")
    assert told["data"]["outcome"]["exit_code"] == 3
    assert "stdout" not in told["data"]


def test_a_command_that_is_missing(status):
    code, told = status("run", "x", "--", "no-such-command")
    assert (code, told["kind"]) == (127, "run")
    assert told["data"]["outcome"]["reason"] == "not-started"


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (("run", "y", "--", "true"), 4, "state"),
        (("run", "x", "--network", "none", "--", "true"), 6, "isolation"),
        (("run", "x", "--timeout", "soon", "--", "true"), 2, "spec"),
        (("wait", "y"), 4, "state"),
        (("attach", "y"), 4, "state"),
        (("shell", "y"), 4, "state"),
        (("edit", "y", "--", "true"), 4, "state"),
    ],
)
def test_an_error_of_atolls_own(status, args, code, kind):
    found, told = status(*args)
    assert (found, told["kind"]) == (code, "error")
    assert (told["data"]["type"], told["data"]["exit_code"]) == (kind, code)


def test_a_run_in_the_background_and_its_end(status):
    code, told = status("run", "x", "-d", "--", "sh", "-c", "exit 4")
    assert (code, told["kind"], told["data"]["outcome"]) == (0, "run", None)
    code, told = status("wait", "x")
    assert (code, told["data"]["outcome"]["exit_code"]) == (4, 4)


def test_the_command_does_not_have_the_descriptor(status):
    code, told = status("run", "x", "--", "sh", "-c", "ls /proc/self/fd | wc -l | grep -qx 4")
    assert (code, told["kind"]) == (0, "run")


@pytest.mark.parametrize("fd", ["0", "1", "2", "-1", "999", "2147483648", f"{1 << 80}", "three"])
def test_a_descriptor_that_cannot_be_used(atoll, repo, fd):
    atoll("new", "x", "--level", "none", cwd=repo)
    marker = repo / "ran"
    done = atoll("run", "x", "--status-fd", fd, "--", "touch", marker, cwd=repo, check=False)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert not marker.exists()


def test_a_descriptor_that_is_only_for_reading(atoll, repo):
    atoll("new", "x", "--level", "none", cwd=repo)
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        args = ("run", "x", "--status-fd", str(fd), "--", "true")
        done = atoll(*args, cwd=repo, check=False, pass_fds=(fd,))
    finally:
        os.close(fd)
    assert done.returncode == 2
    assert "not open for writing" in done.stderr


def test_a_reader_that_has_left(atoll, repo):
    atoll("new", "x", "--level", "none", cwd=repo)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        args = ("run", "x", "--status-fd", str(writer), "--", "sh", "-c", "exit 3")
        done = atoll(*args, cwd=repo, check=False, pass_fds=(writer,))
    finally:
        os.close(writer)
    assert done.returncode == 3
    assert done.stderr.count("warning: cannot write to `--status-fd") == 1


def test_a_disk_that_is_full(atoll, repo):
    atoll("new", "x", "--level", "none", cwd=repo)
    with open("/dev/full", "wb", buffering=0) as full:
        fd = full.fileno()
        args = ("run", "x", "--status-fd", str(fd), "--", "sh", "-c", "exit 3")
        done = atoll(*args, cwd=repo, check=False, pass_fds=(fd,))
    assert done.returncode == 3
    assert done.stderr.count("warning: cannot write to `--status-fd") == 1
