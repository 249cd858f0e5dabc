"""A real terminal: the program under a pty, as a person uses it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
import time

import pytest

from terminals import Terminal


@pytest.fixture
def terminal(repo):
    opened = []

    def open_terminal(*args, **options):
        term = Terminal([sys.executable, "-m", "atoll", *args], repo, **options)
        opened.append(term)
        return term

    yield open_terminal
    for term in opened:
        term.close()


def test_a_run_gets_a_real_terminal_of_the_right_size(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    term = terminal("run", "x", "--", "sh", "-c", "tty; stty size; read line; stty size", rows=31)
    term.expect(r"/dev/pts/\d+")
    term.expect("31 80")
    term.resize(40, 132)
    term.process.send_signal(signal.SIGWINCH)
    term.type("\n")
    term.expect("40 132")
    assert term.process.wait(timeout=20) == 0


def test_a_shell_with_job_control_and_its_code(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    term = terminal("shell", "x", env={"SHELL": "/bin/bash"})
    term.expect(r"[#$] ")
    term.type("echo begin-$((40+2)); sleep 600\n")
    term.expect("begin-42")
    time.sleep(0.3)
    term.type("\x1a")
    term.expect("Stopped")
    term.type("kill %1; echo marker-$((40+2))\n")
    term.expect("marker-42")
    term.type("exit 9\n")
    assert term.process.wait(timeout=20) == 9


def test_ctrl_c_reaches_the_command_and_the_terminal_is_restored(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    # A shell that is hit while it forks goes on waiting for its child: no child, no such moment.
    term = terminal("run", "x", "--", "sh", "-c", "echo ready; exec sleep 600")
    before = termios.tcgetattr(term.master)
    term.expect("ready")
    term.type("\x03")
    assert term.process.wait(timeout=20) == 130
    assert termios.tcgetattr(term.master)[:4] == before[:4]


def test_a_closed_terminal_ends_the_run(atoll, repo, terminal, wait_for):
    atoll("new", "x", cwd=repo)
    term = terminal("run", "x", "--", "sh", "-c", "trap '' HUP; echo ready; sleep 600")
    term.expect("ready")
    os.close(term.master)
    term.master = os.open(os.devnull, os.O_RDONLY)

    def ended():
        shown = json.loads(atoll("show", "x", "--json", cwd=repo).stdout)
        return shown["data"]["runs"][0]["outcome"]

    assert wait_for(ended, timeout_s=30, what="the end")["reason"] in ("hangup", "stopped")
    term.process.wait(timeout=20)


def test_a_closed_terminal_detaches(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    script = "echo ready; read line; echo heard $line"
    atoll("run", "x", "-d", "-t", "--", "sh", "-c", script, cwd=repo)
    term = terminal("attach", "x.1")
    term.expect("ready")
    os.close(term.master)
    term.master = os.open(os.devnull, os.O_RDONLY)
    term.process.wait(timeout=60)
    again = terminal("attach", "x.1")
    again.type("you\n")
    again.expect("heard you")
    assert again.process.wait(timeout=60) == 0


def test_attach_types_to_a_run_and_leaves_it_running(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    atoll("run", "-d", "-t", "x", "--", "sh", "-c", "while read l; do echo got-$l; done", cwd=repo)
    term = terminal("attach", "x.1")
    term.expect("Ctrl-]")
    term.type("one\n")
    term.expect("got-one")
    term.type("\x1d")
    term.expect("detached from x.1")
    assert term.process.wait(timeout=20) == 0
    again = terminal("attach", "x")
    # What was said before is shown to whoever comes later.
    again.expect("got-one")
    again.type("two\n")
    again.expect("got-two")
    again.type("\x1d")
    assert again.process.wait(timeout=20) == 0
    atoll("stop", "x", "--grace", "0.2", cwd=repo)
    assert atoll("attach", "x", cwd=repo, check=False).returncode == 4


def test_attach_chooses_the_latest_active_run(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    atoll("run", "-d", "-t", "x", "--", "sh", "-c", "while read l; do echo got-$l; done", cwd=repo)
    atoll("run", "x", "--", "true", cwd=repo)
    term = terminal("attach", "x")
    term.expect("attached to x.1")
    term.type("\x1d")
    assert term.process.wait(timeout=20) == 0
    atoll("stop", "x", "--grace", "0.2", cwd=repo)


def test_detaching_resets_the_modes_of_a_full_screen_program(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    draw = r"printf '\\033[?1049h\\033[?1000h\\033[?25ldrawn'; read l"
    atoll("run", "-d", "-t", "x", "--", "sh", "-c", draw, cwd=repo)
    term = terminal("attach", "x")
    term.expect("drawn")
    term.type("\x1d")
    shown = term.expect(r"(?s)\x1b\[\?1049l.*detached from x.1").group()
    assert "\x1b[?1000l" in shown
    assert "\x1b[?25h" in shown
    # Nothing of the screen is left on the line of the message or below it.
    assert shown.replace("\r\r", "\r").endswith("\x1b[Jdetached from x.1")
    assert term.process.wait(timeout=20) == 0
    atoll("stop", "x", "--grace", "0.2", cwd=repo)


def test_tables_and_colours_on_a_terminal_only(atoll, repo, terminal):
    atoll("new", "x", cwd=repo)
    term = terminal("ls")
    assert term.expect(r"(?s)NAME.*─.*ready")
    assert "\x1b[" not in atoll("ls", cwd=repo).stdout
    plain = terminal("ls", env={"NO_COLOR": "1"})
    shown = plain.expect(r"(?s)NAME.*ready[^\n]*\n").group()
    assert not re.search(r"\x1b\[3\dm", shown)


def test_progress_is_reported_when_something_takes_long(atoll, repo, terminal):
    (repo / "atoll.toml").write_text('[capsule]\nsetup = ["sleep 1.6"]\n')
    atoll("trust", cwd=repo)
    term = terminal("new", "slow")
    term.expect("slow: setting up … 1 s")
    term.expect("created `slow`")
    assert term.process.wait(timeout=20) == 0
    piped = atoll("new", "piped", cwd=repo)
    assert "piped: setting up …\n" in piped.stderr
