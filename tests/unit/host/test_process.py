from __future__ import annotations

import os
import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.host import process
from atoll.host.process import launch, own_environment, replayable, run, wait_until
from atoll.model.errors import DriverError, PrerequisiteError
from atoll.model.plan import Enclosure


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


def test_silent_failure_is_told_too():
    with pytest.raises(DriverError, match="exit code 1: it said nothing"):
        run(("false",))


def test_allowed_codes_are_results():
    assert run(("sh", "-c", "exit 3"), allowed=(0, 3)).code == 3
    with pytest.raises(DriverError):
        run(("true",), allowed=(3,))


def test_death_by_signal_is_a_failure():
    with pytest.raises(DriverError, match="exit code -9"):
        run(("sh", "-c", "kill -9 $$"))


def test_missing_program_is_a_prerequisite():
    with pytest.raises(PrerequisiteError, match="`no-such-program` is not installed"):
        run(("no-such-program",))


def test_missing_directory_is_not_a_missing_program(tmp_path):
    with pytest.raises(DriverError, match="there is no directory"):
        run(("true",), cwd=str(tmp_path / "nothing"))


def test_enclosure_decides_environment_place_and_prefix(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "owner")
    inside = Enclosure(
        env={"PATH": os.environ["PATH"], "ONLY": "this"},
        cwd=str(tmp_path),
        prefix=("env", "ADDED=1"),
    )
    said = run(("sh", "-c", "pwd; env"), within=inside).text.splitlines()
    assert said[0] == str(tmp_path)
    assert {"ONLY=this", "ADDED=1"} <= set(said)
    assert "USER=owner" not in said
    assert run(("pwd",), within=inside, cwd="/").text == "/\n"


def test_every_command_can_be_heard(monkeypatch, tmp_path):
    heard = []
    monkeypatch.setattr(process, "on_command", heard.append)
    run(("echo", "a b", "'"), cwd=str(tmp_path))
    assert heard == [f"cd {tmp_path} && echo 'a b' ''\"'\"''"]


@given(st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1))
def test_line_can_be_pasted(argv):
    assert shlex.split(replayable(argv)) == argv


def test_launch_waits_for_the_first_process_only(tmp_path):
    started = time.monotonic()
    launch(("sh", "-c", f"(sleep 0.3; touch {tmp_path}/done) &"), keep_fds=(), env={})
    assert time.monotonic() - started < 5
    assert wait_until((tmp_path / "done").exists, timeout_s=10)


def test_launch_that_fails_is_told():
    with pytest.raises(DriverError, match="exit code 7"):
        launch(("sh", "-c", "exit 7"), keep_fds=(), env={"PATH": os.environ["PATH"]})


def test_waiting_ends_with_the_condition_or_the_time():
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), timeout_s=10, interval_s=0)
    assert wait_until(lambda: True, timeout_s=0)
    assert not wait_until(lambda: False, timeout_s=0)
    started = time.monotonic()
    assert not wait_until(lambda: False, timeout_s=0.1)
    assert 0.1 <= time.monotonic() - started < 5
