from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.host import process
from atoll.host.process import Program, launch, own_environment, replayable, run, stream, wait_until
from atoll.model.enclosure import Enclosure
from atoll.model.errors import DriverError, PrerequisiteError, StateError


def test_result_is_what_the_program_said():
    done = run(("sh", "-c", "printf out; printf err >&2"))
    assert (done.code, done.stdout, done.stderr, done.text) == (0, b"out", b"err", "out")


def test_text_keeps_every_byte():
    done = run(("printf", r"caf\351"))
    assert os.fsencode(done.text) == b"caf\xe9"


def test_environment_is_an_allow_list(monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "LD_PRELOAD", "GIT_DIR",
                 "GIT_SSH_COMMAND", "BASH_ENV", "PYTHONPATH", "http_proxy"):  # fmt: skip
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/kept")
    assert "canary" not in own_environment().values()
    said = run(("env",)).text
    assert "canary" not in said
    assert "GIT_CONFIG_GLOBAL=/kept" in said
    assert "LC_ALL=C.UTF-8" in said
    assert "GIT_TERMINAL_PROMPT=0" in said


def test_own_variables_come_on_top():
    assert "LC_ALL=C\n" in run(("env",), env={"LC_ALL": "C"}).text


def test_stdin_is_null_unless_given():
    assert run(("cat",)).stdout == b""
    assert run(("cat",), stdin=b"given").stdout == b"given"


def test_much_goes_in_and_out_at_once():
    data = os.urandom(1 << 20) * 8
    assert run(("cat",), stdin=data).stdout == data


def test_program_that_does_not_read_its_input():
    assert run(("true",), stdin=b"x" * (1 << 20)).code == 0


def test_descriptors_are_inherited_only_by_name():
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    listing = ("sh", "-c", "ls /proc/$$/fd")
    assert str(reader) not in run(listing).text.split()
    assert str(reader) in run(listing, keep_fds=(reader,)).text.split()
    os.close(reader)
    os.close(writer)


def test_failure_carries_the_end_of_what_was_said():
    with pytest.raises(DriverError) as caught:
        run(("sh", "-c", "printf 'x%.0s' $(seq 5000) >&2; echo; echo END >&2; exit 3"))
    assert "failed with exit code 3" in caught.value.message
    assert caught.value.message.endswith("END")
    assert len(caught.value.message) < 2500


def test_silent_failure_is_reported_too():
    with pytest.raises(DriverError, match="exit code 1"):
        run(("false",))


def test_allowed_codes_are_results():
    assert run(("sh", "-c", "exit 3"), allowed=(0, 3)).code == 3
    with pytest.raises(DriverError):
        run(("true",), allowed=(3,))


def test_death_by_signal_is_a_failure():
    with pytest.raises(DriverError, match="-9"):
        run(("sh", "-c", "kill -9 $$"))


def test_missing_program_is_a_prerequisite():
    with pytest.raises(PrerequisiteError, match="`no-such-program`"):
        run(("no-such-program",))


def test_missing_directory_is_not_a_missing_program(tmp_path):
    with pytest.raises(DriverError, match="nothing"):
        run(("true",), cwd=str(tmp_path / "nothing"))


def test_output_is_bounded():
    endless = ("sh", "-c", "echo $$; exec yes")
    with pytest.raises(DriverError, match="1M"):
        run(endless, limit_bytes=1 << 20)
    # As a control: what is within the bound is kept to the last byte.
    said = run(("head", "-c", str(1 << 20), "/dev/zero"), limit_bytes=1 << 20)
    assert said.stdout == bytes(1 << 20)


def test_the_end_of_complaints_is_kept():
    script = "head -c 30000000 /dev/zero >&2; echo last >&2; echo well"
    done = run(("sh", "-c", script))
    assert done.text == "well\n"
    assert done.stderr.endswith(b"\0last\n")
    assert len(done.stderr) == 1 << 20


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 22) + 1])
def test_input_and_output_at_once(size):
    given = os.urandom(size)
    assert run(("cat",), stdin=given).stdout == given
    # One that does not read to the end is no error.
    assert run(("true",), stdin=given).code == 0


def test_no_program_of_a_workspace_without_walls(tmp_path, monkeypatch):
    """Neither by its name nor through another program."""
    (tmp_path / "bin").mkdir()
    for name in ("id", "cat"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho planted\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path}/bin:bin::{os.environ['PATH']}"
    inside = Enclosure(env={"PATH": path}, cwd=str(tmp_path))
    assert "planted" not in run(("id",), within=inside).text
    assert "planted" not in run(("sh", "-c", "id; cat </dev/null"), within=inside).text
    assert "planted" not in run(("env", "id"), within=inside).text
    # As a control: a plain process with that PATH starts them.
    done = subprocess.run(["id"], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "planted\n"


def test_enclosure_decides_environment_and_place(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "owner")
    inside = Enclosure(
        env={"PATH": os.environ["PATH"], "ONLY": "this"},
        cwd=str(tmp_path),
    )
    said = run(("sh", "-c", "pwd; env"), within=inside).text.splitlines()
    assert said[0] == str(tmp_path)
    assert "ONLY=this" in said
    assert "USER=owner" not in said
    assert run(("pwd",), within=inside, cwd="/").text == "/\n"


def test_every_command_can_be_heard(monkeypatch, tmp_path):
    heard: list[str] = []
    monkeypatch.setattr(process, "on_command", heard.append)
    run(("echo", "a b", "'"), cwd=str(tmp_path))
    assert heard == [f"cd {tmp_path} && echo 'a b' ''\"'\"''"]


@given(st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1))
def test_line_can_be_pasted(argv):
    assert shlex.split(replayable(argv)) == argv


def test_companion_is_out_of_reach_of_the_terminal():
    child = launch(("sleep", "100"), keep_fds=(), env={"PATH": os.environ["PATH"]})
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
    finally:
        child.kill()
        child.wait()


def test_waiting_ends_with_the_condition_or_the_time():
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), timeout_s=10, interval_s=0)
    assert wait_until(lambda: True, timeout_s=0)
    assert not wait_until(lambda: False, timeout_s=0)
    started = time.monotonic()
    assert not wait_until(lambda: False, timeout_s=0.1)
    assert 0.1 <= time.monotonic() - started < 5


def streamed(*argv, limit_bytes=1 << 20, timeout_s=20, **given):
    """What was taken, and how it ended."""
    taken: list[bytes] = []
    done = stream(
        Program(argv, **given), taken.append, limit_bytes=limit_bytes, timeout_s=timeout_s
    )
    return b"".join(taken), done


def test_stream_hands_over_what_is_said():
    said, done = streamed("sh", "-c", "cat; printf err >&2; exit 3", stdin=b"given")
    assert (said, done.ended) == (b"given", "whole")
    assert done.completed.argv[0] == "sh"
    assert (done.completed.code, done.completed.stderr) == (3, b"err")


def test_stream_is_null_at_its_beginning_unless_given(tmp_path):
    assert streamed("cat")[0] == b""
    (tmp_path / "input").write_bytes(b"from a file")
    with (tmp_path / "input").open("rb") as file:
        assert streamed("cat", stdin=file.fileno())[0] == b"from a file"


def test_stream_carries_much():
    data = os.urandom(1 << 20) * 8
    said, done = streamed("cat", stdin=data, limit_bytes=len(data))
    assert said == data
    assert done.ended == "whole"


def test_stream_honours_environment_descriptors_and_narration(tmp_path, monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(process, "on_command", heard.append)
    reader, writer = os.pipe()
    said, _ = streamed(
        "sh",
        "-c",
        "pwd; env; ls /proc/$$/fd",
        cwd=str(tmp_path),
        env={"OWN": "2"},
        keep_fds=(reader,),
    )
    os.close(reader)
    os.close(writer)
    lines = said.decode().split()
    assert lines[0] == str(tmp_path)
    assert {"OWN=2", str(reader)} <= set(lines)
    assert len(heard) == 1
    assert heard[0].startswith(f"cd {tmp_path} && sh -c")


def test_stream_reports_a_missing_program_and_place(tmp_path):
    with pytest.raises(PrerequisiteError, match="`no-such-program`"):
        streamed("no-such-program")
    with pytest.raises(DriverError, match="nothing"):
        streamed("true", cwd=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("script", "limits", "ended"),
    [
        ("sleep 1000", {"timeout_s": 0.3}, "time"),
        ("echo ready; sleep 1000", {"timeout_s": 0.3}, "time"),
        ("exec >&- 2>&-; sleep 1000", {"timeout_s": 0.3}, "time"),
        ("trap '' TERM HUP INT; sleep 1000 & wait", {"timeout_s": 0.3}, "time"),
        ("sleep 1000 & exit 0", {"timeout_s": 0.3}, "time"),
        ("sleep 1000 >&- 2>&- & exit 0", {}, "whole"),
        ("while :; do echo data; done", {"limit_bytes": 100_000}, "size"),
        ("while :; do echo flood >&2; done", {"limit_bytes": 100_000}, "size"),
    ],
)
def test_stream_ends_and_takes_its_group_along(script, limits, ended, tmp_path, processes_with):
    marker = f"MARKER={tmp_path}"
    began = time.monotonic()
    said, done = streamed("sh", "-c", script, env={"MARKER": str(tmp_path)}, **limits)
    assert time.monotonic() - began < 10
    assert done.ended == ended
    assert len(said) <= 100_000
    assert len(done.completed.stderr) <= 2000
    assert wait_until(lambda: processes_with(marker) == [], timeout_s=5)


def test_stream_ends_when_its_taker_refuses(tmp_path, processes_with):
    def refuse(chunk):
        raise StateError(chunk.decode())

    program = Program(("sh", "-c", "printf no; sleep 1000"), env={"MARKER": str(tmp_path)})
    with pytest.raises(StateError, match="no"):
        stream(program, refuse, limit_bytes=100, timeout_s=20)
    assert wait_until(lambda: processes_with(f"MARKER={tmp_path}") == [], timeout_s=5)


def test_stream_limits_memory():
    limited = "from resource import *\nwhile getrlimit(RLIMIT_DATA)[0] == RLIM_INFINITY: pass\n"
    greedy = (sys.executable, "-c", f"{limited}print(len(bytes(1 << 29)))")
    assert streamed(*greedy, memory_bytes=1 << 30)[1].completed.code == 0
    refused = streamed(*greedy, memory_bytes=1 << 28)[1].completed
    assert refused.code == 1
    assert b"MemoryError" in refused.stderr
