"""Standard streams that are closed, full or have no reader: cron, daemons, `>&-`, `| head`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

ATOLL = f"{sys.executable} -m atoll"
CLOSED = (">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-")


@pytest.fixture
def shell(atoll, atoll_home, repo):
    """`shell("ls >&-")`: a command line of atoll with the redirections of a shell."""
    atoll("new", "x", "--level", "none", cwd=repo)

    def run(line: str, *, unbuffered: bool = False) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
        return subprocess.run(
            ["bash", "-c", f"{ATOLL} {line}"],
            cwd=repo, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_closed_streams_count_as_the_null_device(shell):
    for streams in CLOSED:
        for verb, code in (("ls", 0), ("run x -- sh -c 'cat; echo a; exit 7'", 7), ("show y", 4)):
            done = shell(f"{verb} {streams}")
            assert done.returncode == code, (verb, streams, done)
            assert "Traceback" not in done.stdout + done.stderr
            assert "bug" not in done.stdout + done.stderr
    assert shell("--help <&- >&- 2>&-").returncode == 0


def test_no_file_gets_the_number_of_a_closed_stream(shell, atoll, repo, atoll_home):
    """What was to be printed would go into the database, if that had descriptor 1."""
    assert shell("new z --level none --json <&- >&- 2>&-").returncode == 0
    assert shell("rm z --json <&- >&- 2>&-").returncode == 0
    assert [c["name"] for c in json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"]] == ["x"]
    said = atoll("run", "x", "--", "sh", "-c", "ls -l /proc/self/fd", cwd=repo).stdout
    assert str(atoll_home) not in said


def test_output_that_cannot_be_written_is_an_error(shell):
    for verb, unbuffered in (
        ("ls", False), ("ls --json", True), ("--help", True), ("ls --help", False),
        ("show y --json", False),
    ):  # fmt: skip
        done = shell(f"{verb} >/dev/full", unbuffered=unbuffered)
        assert done.returncode == 3, done
        assert "cannot write to standard output: No space left on device" in done.stderr
        assert "Exception ignored" not in done.stderr


def test_output_of_a_run_that_cannot_be_written(shell):
    done = shell("run x -- echo hi >/dev/full")
    assert done.returncode == 3
    assert "cannot write to standard output" in done.stderr


def test_what_was_made_is_not_undone(shell, atoll, repo):
    assert shell("new z --level none >/dev/full").returncode == 3
    assert "z" in atoll("ls", cwd=repo).stdout


@pytest.mark.parametrize("streams", ["2>/dev/full", "2> >(exec <&-)"])
def test_narration_that_cannot_be_written_does_not_stop_the_work(shell, streams):
    done = shell(f"new z --level none {streams}")
    assert (done.returncode, done.stdout) == (0, "z\n")


def test_a_reader_that_has_left(shell):
    for verb in ("ls", "--help"):
        done = shell(f"{verb} | true; exit ${{PIPESTATUS[0]}}")
        # Whether it leaves before or after the text is in the pipe is not ours to say.
        assert done.returncode in (0, 141), done
        assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_a_long_answer(shell):
    done = shell("run x -- sh -c 'yes | head -c 1000000' | head -c 1; exit ${PIPESTATUS[0]}")
    assert done.returncode == 141, done
