from __future__ import annotations

import errno
import json
import os
import signal
import sys
from types import ModuleType

import click
import pytest

from atoll.cli import app, output
from atoll.cli.frame import verb
from atoll.model.errors import (
    DriverError,
    Interrupted,
    IsolationError,
    Mistake,
    PrerequisiteError,
    SpecError,
    StateError,
)
from atoll.version import __version__


@pytest.fixture(autouse=True)
def signals_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(capfd, atoll_home):
    """`run("ls", "--json")` → (exit code, stdout, stderr), in this process."""

    def call(*argv):
        code = app.run(argv)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def planted(monkeypatch):
    """`planted(error)`: the verb `boom` raises it."""

    def plant(action):
        @click.command("boom")
        @verb
        def command(frame):
            if isinstance(action, BaseException):
                raise action
            return action(frame)

        module = ModuleType("atoll.cli.boom")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "atoll.cli.boom", module)
        monkeypatch.setitem(app.VERBS, "boom", "Fails.")

    return plant


def test_version(run):
    assert run("--version") == (0, f"atoll {__version__}\n", "")


def test_help_names_every_verb(run):
    code, out, _ = run("--help")
    assert code == 0
    for name in app.VERBS:
        assert f"\n  {name} " in out
    assert run("-h")[1] == out
    assert run()[:2] == (0, out)


def test_every_verb_is_in_one_section():
    listed = [name for names in app.SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(app.VERBS)


@pytest.mark.parametrize("name", app.VERBS)
def test_every_verb_loads_and_explains_itself(run, name):
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: atoll {name}" in out
    assert "--json" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("lss",), "unknown verb `lss`; did you mean `ls`?"),
        (("zzzzz",), "unknown verb `zzzzz`"),
        (("--nothing",), "--nothing"),
        (("ls", "--nothing"), "--nothing"),
        (("ls", "extra"), "extra"),
        (("new",), "`NAME...`"),
        (("run", "x"), "-- COMMAND"),
        (("new", "x", "-n", "0"), "-n"),
        (("stop", "x", "--grace", "-1"), "--grace"),
    ],
)
def test_bad_request_exits_with_2_and_a_hint(run, argv, said):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "\nhint: atoll " in err


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("secret", "set", "X", "--broker"), "--broker HOST"),
        (("spawn", "-q", "--model"), "--model MODEL"),
        (("new", "x", "-n"), "atoll new --help"),
        (("--project",), "--project DIR"),
    ],
)
def test_option_without_its_value_shows_its_form(run, argv, hint):
    code, _, err = run(*argv)
    assert code == 2
    assert err.endswith(f"\nhint: {hint}\n")


def test_agents_outside_of_a_repository(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("agents")
    assert code == 4
    assert err.endswith("is not in a git repository\nhint: atoll agents --all\n")


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (SpecError("m", hint="h"), 2, "spec"),
        (PrerequisiteError("m", hint="h"), 3, "prerequisite"),
        (StateError("m", hint="h"), 4, "state"),
        (DriverError("m", hint="h"), 5, "driver"),
        (IsolationError("m", hint="h"), 6, "isolation"),
        (Interrupted(15), 143, "interrupted"),
    ],
)
def test_errors_become_exit_codes(run, planted, error, code, kind):
    planted(error)
    hint = "" if error.hint is None else f"hint: {error.hint}\n"
    assert run("boom") == (code, "", f"error: {error.message}\n{hint}")
    got, out, err = run("boom", "--json")
    assert (got, err) == (code, "")
    assert json.loads(out) == {
        "version": 1,
        "kind": "error",
        "data": {
            "type": kind,
            "message": error.message,
            "hint": error.hint,
            "exit_code": code,
            "mistakes": [],
        },
    }


def test_json_can_be_asked_for_before_the_verb(run, planted):
    planted(StateError("m"))
    assert json.loads(run("--json", "boom")[1])["kind"] == "error"


def test_json_of_the_command_inside_is_not_ours(run):
    code, out, err = run("run", "x", "--", "tool", "--json")
    assert (code, out) == (4, "")
    assert err.startswith("error: ")


def test_all_mistakes_are_shown(run, planted):
    mistakes = tuple(Mistake(source="f", key=f"k{n}", message="bad", line=n) for n in (1, 2))
    planted(SpecError("`f` has 2 mistakes", mistakes=mistakes))
    assert run("boom")[2] == "error: `f` has 2 mistakes\n  f:1: `k1`: bad\n  f:2: `k2`: bad\n"


def test_hostile_text_in_an_error_is_harmless(run, planted):
    planted(StateError("a\x1b]52;c;eA==\x07\n\x9b2J\u202e", hint="\x1b[2J"))
    err = run("boom")[2]
    assert all(char.isprintable() or char == "\n" for char in err)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, 3, "the disk is full (`/full`)"),
        (errno.EDQUOT, 3, "the disk is full"),
        (errno.EROFS, 3, "the filesystem is read-only (`/full`)"),
        (errno.EACCES, 3, "permission denied"),
        (errno.EIO, 5, "system error: "),
    ],
)
def test_errors_of_the_system_are_explained(run, planted, number, code, said):
    planted(OSError(number, os.strerror(number), "/full"))
    got, out, err = run("boom")
    assert (got, out) == (code, "")
    assert said in err


def test_other_things_than_disks_can_be_used_up(run, planted, atoll_home):
    atoll_home.mkdir()
    planted(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    got, _, err = run("boom")
    assert got == 3
    assert "system error: No space left on device" in err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interruption_is_130(run, planted, error):
    planted(error)
    assert run("boom")[0] == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_unwinds_and_is_reported(run, planted, number):
    seen = []

    def act(frame):
        try:
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 5)
        finally:
            seen.append("undone")

    planted(act)
    assert run("boom")[0] == 128 + number
    assert seen == ["undone"]


def test_bug_is_called_one(run, planted, monkeypatch):
    monkeypatch.delenv("ATOLL_DEBUG", raising=False)
    planted(ZeroDivisionError("division by zero"))
    code, out, err = run("boom")
    assert (code, out) == (5, "")
    assert "this is a bug in atoll: ZeroDivisionError: division by zero (at command:" in err
    monkeypatch.setenv("ATOLL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        app.run(["boom"])


def test_reader_that_left_is_no_error(run, planted):
    planted(output.ReaderLeft())
    kept = os.dup(1)
    try:
        assert app.run(["boom"]) == 128 + signal.SIGPIPE
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (7, 7), (True, 1)])
def test_code_of_a_verb_is_the_code(run, planted, returned, code):
    planted(lambda _: returned)
    assert run("boom")[0] == code


def test_common_options_count_before_and_after_the_verb(run, planted, tmp_path):
    def act(frame):
        frame.output.note("narration")
        frame.output.answer("x", {"path": frame._path}, "answer")

    planted(act)
    assert run("boom") == (0, "answer\n", "narration\n")
    assert run("-q", "boom") == run("boom", "-q") == (0, "answer\n", "")
    for argv in (("--project", "/p", "boom", "--json"), ("--json", "boom", "--project", "/p")):
        assert json.loads(run(*argv)[1]) == {"version": 1, "kind": "x", "data": {"path": "/p"}}


def test_outside_a_repository(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("ls")
    assert (code, out) == (4, "")
    assert "is not in a git repository" in err


def test_home_that_cannot_be_used(run, monkeypatch, repo, tmp_path):
    monkeypatch.chdir(repo)
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("ATOLL_HOME", str(tmp_path / "file"))
    code, _, err = run("ls")
    assert code == 3
    assert "hint: set ATOLL_HOME" in err
