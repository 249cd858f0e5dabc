"""Ctrl-C in the middle of `new` and `rm`, once and twice: undone now, or by the next command."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from atoll.drivers.workspace import recovery_save
from atoll.engine.projects import open_project
from atoll.model.errors import Interrupted
from atoll.model.state import CapsuleState
from matches import matching


@pytest.fixture
def slow_project(repo, atoll):
    (repo / "atoll.toml").write_text('[capsule]\nsetup = ["touch begun && sleep 600"]\n')
    atoll("trust", cwd=repo)
    return repo


def is_making(atoll_home):
    return bool(matching(atoll_home, "projects/*/x/workspace/x/begun"))


def assert_nothing_left(atoll, atoll_home, git, repo):
    assert json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"] == []
    assert git("branch", "--list", "atoll/*", cwd=repo) == ""
    assert len(git("worktree", "list", cwd=repo).splitlines()) == 1
    assert not list(atoll_home.glob("projects/*/*"))
    assert not list((atoll_home / "locks").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_undoes_a_new(number, slow_project, atoll, atoll_home, git, start_cli, wait_for):
    cli = start_cli("new", "x", cwd=slow_project)
    wait_for(lambda: is_making(atoll_home), timeout_s=30, what="the set-up")
    cli.send_signal(number)
    assert cli.wait(timeout=60) == 128 + number
    assert not list(atoll_home.glob("projects/*/*"))
    assert_nothing_left(atoll, atoll_home, git, slow_project)


def test_two_signals_leave_the_undoing_to_the_next_command(
    slow_project, atoll, atoll_home, git, start_cli, wait_for
):
    cli = start_cli("new", "x", cwd=slow_project)
    wait_for(lambda: is_making(atoll_home), timeout_s=30, what="the set-up")
    cli.send_signal(signal.SIGINT)
    time.sleep(0.05)
    cli.send_signal(signal.SIGINT)
    # The second one may meet the interpreter on its way out: to a shell both are 130.
    assert cli.wait(timeout=60) in (130, -signal.SIGINT)
    assert_nothing_left(atoll, atoll_home, git, slow_project)


def test_an_interrupted_rm_loses_nothing(repo, atoll, git, start_cli, wait_for):
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo precious > work.txt", cwd=repo)
    atoll("run", "-d", "x", "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done", cwd=repo)
    cli = start_cli("rm", "x", "--force", cwd=repo)
    time.sleep(0.4)
    cli.send_signal(signal.SIGINT)
    cli.wait(timeout=60)
    atoll("ls", cwd=repo)
    if json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"]:
        assert "precious" in atoll("diff", "x", cwd=repo).stdout
        atoll("stop", "x", "--grace", "0.1", cwd=repo)
    else:
        atoll("recover", "x", "--as", "y", cwd=repo)
        assert "precious" in atoll("diff", "y", cwd=repo).stdout


@pytest.mark.parametrize("signalled", [KeyboardInterrupt(), Interrupted(signal.SIGTERM)])
def test_an_interrupt_while_work_is_stored_takes_the_removal_back(
    signalled, repo, atoll_home, monkeypatch
):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    said: list[str] = []
    project = open_project(repo, background=False, warn=said.append)
    capsule = project.new("x")
    capsule.run(["sh", "-c", "echo precious > work.txt; git init -q inner; touch inner/one"])

    def interrupted(*args, **options):
        raise signalled

    with monkeypatch.context() as patch:
        # Its files are copied first, since git cannot store them all.
        patch.setattr(recovery_save, "_note", interrupted)
        with pytest.raises(type(signalled)):
            capsule.remove(force=True)
    assert said == ["`x` is not removed; its runs may have been stopped"]
    assert not list(atoll_home.glob("recovered/*/*"))
    [record] = project.session.store.capsules()
    assert record.state is CapsuleState.READY
    assert (project.capsule("x").run(["grep", "precious", "work.txt"])).exit_code == 0
    assert project.capsule("x").remove(force=True) is not None


def test_atoll_inside_a_capsule_refuses(repo, atoll):
    atoll("new", "x", cwd=repo)
    inner = atoll(
        "run", "x", "--", sys.executable, "-m", "atoll", "new", "y", cwd=repo, check=False
    )
    assert inner.returncode == 4
    assert "inside the capsule `x`" in inner.stderr
