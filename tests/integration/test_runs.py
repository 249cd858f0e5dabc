"""Runs at the levels that exist: codes, streams, background, logs, the end of a process tree."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

CANARIES = {
    "GITHUB_TOKEN": "canary-1",
    "AWS_SECRET_ACCESS_KEY": "canary-2",
    "OPENAI_API_KEY": "canary-3",
    "DATABASE_URL": "postgres://u:canary-4@h/db",
    "SSH_AUTH_SOCK": "/tmp/canary-5",
    "LD_PRELOAD_EXTRA": "canary-6",
    "https_proxy": "http://user:canary-7@proxy:3128",
}


def answer(result):
    return json.loads(result.stdout)["data"]


@pytest.mark.parametrize("level", ["none", "worktree"])
def test_a_level_works_whole(level, atoll, repo, git):
    atoll("new", "x", "--level", level, cwd=repo)
    assert atoll("run", "x", "--", "cat", "app.py", cwd=repo).stdout == "print('hello')\n"
    atoll("run", "x", "--", "sh", "-c", "echo new > made.txt", cwd=repo)
    assert "made.txt" in atoll("diff", "x", "--stat", cwd=repo).stdout
    where = atoll("path", "x", cwd=repo).stdout.strip()
    assert (where == str(repo)) is (level == "none")
    shown = answer(atoll("show", "x", "--json", cwd=repo))
    assert [run["outcome"]["exit_code"] for run in shown["runs"]] == [0, 0]
    atoll("rm", "x", "--force", cwd=repo)
    assert answer(atoll("ls", "--json", cwd=repo)) == []
    assert (repo / "made.txt").exists() is (level == "none")


def test_the_worktree_is_a_real_one_on_its_own_branch(atoll, repo, git):
    atoll("new", "x", cwd=repo)
    listed = git("worktree", "list", "--porcelain", cwd=repo)
    assert "branch refs/heads/atoll/x" in listed
    assert atoll("path", "x", cwd=repo).stdout.strip() in listed
    assert git("status", "--porcelain", cwd=repo) == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command"], 127),
        (["./app.py"], 126),
    ],
)
def test_the_exit_code_is_the_commands_own(command, code, atoll, repo):
    atoll("new", "x", cwd=repo)
    assert atoll("run", "x", "--", *command, cwd=repo, check=False).returncode == code


def test_streams_are_kept_apart_and_stdin_arrives(atoll, repo):
    atoll("new", "x", cwd=repo)
    result = atoll("run", "x", "--", "sh", "-c", "cat; echo bad >&2", cwd=repo, input="in\n")
    assert result.stdout == "in\n"
    assert result.stderr == "bad\n"


def test_no_credential_of_the_owner_leaks_in(atoll, repo):
    atoll("new", "x", cwd=repo)
    result = atoll("run", "x", "--", "env", cwd=repo, env=CANARIES)
    assert "canary" not in result.stdout
    assert "ATOLL_CAPSULE=x" in result.stdout
    # The same question without the wall: the canaries are really in the owner's environment.
    outside = atoll("run", "x", "--", sys.executable, "-c", "print('outside')", cwd=repo)
    assert outside.stdout == "outside\n"


def test_home_and_tmp_are_the_capsules_own(atoll, repo, atoll_home):
    atoll("new", "x", cwd=repo)
    atoll("new", "y", cwd=repo)
    script = 'echo hi > "$HOME/note"; echo hi > "$TMPDIR/note"; echo "$HOME $TMPDIR"'
    x = atoll("run", "x", "--", "sh", "-c", script, cwd=repo).stdout
    y = atoll("run", "y", "--", "sh", "-c", "ls $HOME $TMPDIR; echo $HOME", cwd=repo).stdout
    assert "note" not in y
    assert all(place.startswith(str(atoll_home)) for place in x.split())


def test_a_commit_inside_carries_the_owners_name(atoll, repo, git):
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo 1 > f && git add f && git commit -qm in", cwd=repo)
    assert git("log", "-1", "--format=%an <%ae>", "atoll/x", cwd=repo) == (
        "Test Owner <owner@example.org>\n"
    )


def test_commit_stores_everything_on_the_branch(atoll, repo, git):
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo 1 > fresh; echo 2 >> app.py", cwd=repo)
    commit = atoll("commit", "x", "-m", "two changes", cwd=repo).stdout.strip()
    assert git("rev-parse", "atoll/x", cwd=repo).strip() == commit
    assert git("show", "--format=%s", "--name-only", "atoll/x", cwd=repo).split("\n") == [
        "two changes",
        "",
        "app.py",
        "fresh",
        "",
    ]
    assert atoll("commit", "x", "-m", "again", cwd=repo, check=False).returncode == 4


def test_the_projects_hooks_run_inside_when_committing(atoll, repo, git):
    hook = repo / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nenv > hook-environment\nexit 1\n")
    hook.chmod(0o755)
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo 1 > f", cwd=repo)
    assert atoll("commit", "x", "-m", "m", cwd=repo, check=False, env=CANARIES).returncode == 5
    seen = atoll("run", "x", "--", "cat", "hook-environment", cwd=repo).stdout
    assert "ATOLL_CAPSULE=x" in seen
    assert "canary" not in seen
    atoll("commit", "x", "-m", "m", "--no-verify", cwd=repo)


def test_new_runs_no_hook_of_the_repository(atoll, repo, tmp_path):
    canary = tmp_path / "canary"
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        hook = repo / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch '{canary}'\n")
        hook.chmod(0o755)
    atoll("new", "x", cwd=repo)
    atoll("rm", "x", cwd=repo)
    assert not canary.exists()


DAEMON = """
import os, signal, sys, time
for _ in range(2):
    if os.fork(): os._exit(0) if _ else time.sleep(600)
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.closerange(0, 64)
open("daemon.pid", "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_stop_leaves_nothing_of_a_daemon(atoll, repo, wait_for, processes_with):
    atoll("new", "x", cwd=repo)
    atoll("run", "-d", "x", "--", sys.executable, "-c", DAEMON, cwd=repo)
    marker = str(atoll("path", "x", cwd=repo).stdout.strip())
    wait_for(lambda: "daemon.pid" in atoll("diff", "x", cwd=repo).stdout, what="the daemon")
    assert len(answer(atoll("ps", "x", "--json", cwd=repo))) >= 2
    stopped = answer(atoll("stop", "x", "--grace", "0.2", "--json", cwd=repo))
    assert [run["outcome"]["reason"] for run in stopped] == ["stopped"]
    assert processes_with(f"PWD={marker}") == []
    assert answer(atoll("ps", "x", "--json", cwd=repo)) == []


def test_what_a_command_leaves_behind_ends_with_it(atoll, repo, processes_with):
    atoll("new", "x", cwd=repo)
    result = atoll("run", "x", "--", "sh", "-c", "sleep 600 & echo started", cwd=repo)
    assert result.stdout == "started\n"
    run = answer(atoll("show", "x", "--json", cwd=repo))["runs"][0]
    assert run["outcome"]["leftover"] == 1


def test_a_background_run_outlives_its_cli_and_is_found_again(atoll, repo):
    atoll("new", "x", cwd=repo)
    label = atoll("run", "-d", "x", "--", "sh", "-c", "echo one; sleep 4; exit 3", cwd=repo)
    assert label.stdout == "x.1\n"
    assert answer(atoll("ls", "--json", cwd=repo))[0]["runs"][0]["state"] == "running"
    assert atoll("logs", "x", "-f", cwd=repo).stdout == "one\n"
    assert atoll("wait", "x", "1", cwd=repo, check=False).returncode == 3
    assert atoll("wait", "x", "x.1", "--json", cwd=repo).returncode == 0


def test_logs_are_harmless_and_json_has_the_bytes(atoll, repo):
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "printf", r"\033]52;c;Zm9v\007\033[31mred\033[0m\n", cwd=repo)
    assert atoll("logs", "x", cwd=repo).stdout == "red\n"
    lines = atoll("logs", "x", "--json", cwd=repo).stdout.splitlines()
    texts = "".join(json.loads(line)["data"]["text"] for line in lines)
    assert texts == "\033]52;c;Zm9v\007\033[31mred\033[0m\n"


def test_a_time_limit_ends_a_run_and_is_named(atoll, repo):
    atoll("new", "x", "--limit", "time=0.3s", cwd=repo)
    result = atoll("run", "x", "--", "sleep", "600", cwd=repo, check=False)
    assert (result.returncode, result.stderr) == (124, "x.1: timeout\n")
    # A longer one on the command line wins over the capsule's.
    assert atoll("run", "x", "--timeout", "60s", "--", "sleep", "0.5", cwd=repo).returncode == 0


def test_runs_of_one_capsule_share_it_and_are_numbered(atoll, repo):
    atoll("new", "x", cwd=repo)
    atoll("run", "-d", "x", "--", "sleep", "600", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", "echo here > shared", cwd=repo)
    assert atoll("run", "x", "--", "cat", "shared", cwd=repo).stdout == "here\n"
    runs = answer(atoll("show", "x", "--json", cwd=repo))["runs"]
    assert [(run["id"], run["state"]) for run in runs] == [
        ("x.1", "running"),
        ("x.2", "ended"),
        ("x.3", "ended"),
    ]
    assert atoll("rm", "x", cwd=repo, check=False).returncode == 4
    atoll("stop", "x", "1", cwd=repo)


def test_interrupting_a_foreground_run_reaches_the_command(repo, atoll, atoll_home, start_cli):
    atoll("new", "x", cwd=repo)
    script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    cli = start_cli("run", "x", "--", "sh", "-c", script, cwd=repo)
    assert cli.stdout.readline() == b"ready\n"
    cli.send_signal(signal.SIGINT)
    assert cli.stdout.read() == b"caught\n"
    assert cli.wait(timeout=20) == 5


def test_a_second_interrupt_ends_what_ignores_the_first(repo, atoll, start_cli):
    atoll("new", "x", cwd=repo)
    script = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done"
    cli = start_cli("run", "x", "--", "sh", "-c", script, cwd=repo)
    assert cli.stdout.readline() == b"ready\n"
    cli.send_signal(signal.SIGINT)
    time.sleep(0.2)
    cli.send_signal(signal.SIGINT)
    assert cli.wait(timeout=20) == 143
    runs = answer(atoll("show", "x", "--json", cwd=repo))["runs"]
    assert runs[0]["outcome"]["reason"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_killed_cli_takes_its_foreground_run_along(number, repo, atoll, start_cli, wait_for):
    atoll("new", "x", cwd=repo)
    cli = start_cli("run", "x", "--", "sh", "-c", "echo ready; sleep 600", cwd=repo)
    assert cli.stdout.readline() == b"ready\n"
    cli.send_signal(number)
    cli.wait(timeout=20)

    def ended():
        return answer(atoll("show", "x", "--json", cwd=repo))["runs"][0]["outcome"]

    outcome = wait_for(ended, timeout_s=20, what="the end of the run")
    assert outcome["reason"] == ("hangup" if number == signal.SIGKILL else "stopped")


def test_a_reader_that_leaves_ends_the_run(repo, atoll, start_cli, wait_for):
    atoll("new", "x", cwd=repo)
    cli = start_cli("run", "x", "--", "yes", cwd=repo)
    assert cli.stdout.readline() == b"y\n"
    cli.stdout.close()
    assert cli.wait(timeout=20) == 128 + signal.SIGPIPE
    shown = wait_for(
        lambda: answer(atoll("show", "x", "--json", cwd=repo))["runs"][0]["outcome"],
        what="the end of the run",
    )
    assert shown["reason"] == "hangup"


def test_binary_output_passes_untouched(repo, atoll, start_cli):
    atoll("new", "x", cwd=repo)
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    cli = start_cli("run", "x", "--", sys.executable, "-c", script, cwd=repo)
    assert cli.stdout.read() == bytes(range(256)) * 4096
    assert cli.wait(timeout=20) == 0


def test_many_arguments_and_odd_ones(repo, atoll):
    atoll("new", "x", cwd=repo)
    words = ["a b", "c\nd", "'", '"', "$HOME", "*", "é", "--json", "--"]
    script = "import sys; print(repr(sys.argv[1:]))"
    result = atoll("run", "x", "--", sys.executable, "-c", script, *words, cwd=repo)
    assert result.stdout == f"{words!r}\n"
    many = [str(n) for n in range(20_000)]
    count = atoll("run", "x", "--", "sh", "-c", "echo $#", "sh", *many, cwd=repo)
    assert count.stdout == "20000\n"
