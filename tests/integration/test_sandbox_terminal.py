"""A real terminal behind walls: what a person types reaches the command, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
from pathlib import Path

import pytest

from persons import as_user, require
from terminals import Terminal

PATIENT = """
import time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("caught", flush=True)
print("line:", input())
raise SystemExit(7)
"""
SIZES = """
import os, signal
# Awaited, not handled: a handler runs only after a read that began just before the signal came.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
while True:
    size = os.get_terminal_size()
    os.write(1, f"{size.columns} {size.lines} {os.ttyname(0)}\\n".encode())
    if size.columns == 132:
        break
    signal.sigwait({signal.SIGWINCH})
print(input())
raise SystemExit(5)
"""


@pytest.fixture
def terminal(person):
    """`terminal("run", "x", "--", "sh")`: the program on a terminal of its own."""
    opened = []

    def open_terminal(*args, **options):
        opened.append(
            Terminal(
                [sys.executable, "-m", "atoll", *args],
                person.repo,
                env={**person.env, "SHELL": "/bin/bash"},
                become=person.preparation(person.repo),
                **options,
            )
        )
        return opened[-1]

    yield open_terminal
    for term in opened:
        term.close()


@as_user
def test_size_and_its_change(person, terminal):
    require("python3")
    person.atoll("new", "x")
    term = terminal("run", "x", "--", "python3", "-c", SIZES, rows=31)
    term.expect(r"80 31 /dev/(pts/\d+|console)")
    term.resize(40, 132)
    term.expect("132 40 /dev")
    term.type("typed\n")
    term.expect("typed")
    assert term.process.wait(timeout=60) == 5


@as_user
def test_ctrl_c_reaches_the_command_which_goes_on(person, terminal):
    require("python3")
    person.atoll("new", "x")
    term = terminal("run", "x", "--", "python3", "-c", PATIENT)
    before = termios.tcgetattr(term.master)
    term.expect("ready")
    term.type("\x03")
    term.expect("caught")
    term.type("still here\n")
    term.expect("line: still here")
    assert term.process.wait(timeout=60) == 7
    assert termios.tcgetattr(term.master)[:4] == before[:4]
    assert person.outcome("x") == {**person.outcome("x"), "reason": "exited", "exit_code": 7}


CLEANS_UP = """
import os, signal, time
def clean_up(*_):
    os.write(1, b"cleaned up\\n")
    os._exit(7)
signal.signal(signal.SIGINT, clean_up)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)
"""
"""Without `print`: a handler that runs before `print` has returned must not call it again."""


@as_user
def test_interrupt_without_a_terminal_reaches_the_command(person):
    require("python3")
    person.atoll("new", "x")
    with person.popen("run", "x", "--", "python3", "-c", CLEANS_UP) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=60)
    assert (child.returncode, rest) == (7, b"cleaned up\n")
    # The control: what does not handle it is ended.
    with person.popen("run", "x", "--", "sh", "-c", "echo ready; exec sleep 600") as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130


def test_ctrl_c_ends_what_does_not_care(person, terminal):
    person.atoll("new", "x")
    term = terminal("run", "x", "--", "sh", "-c", "echo ready; exec sleep 600")
    term.expect("ready")
    term.type("\x03")
    assert term.process.wait(timeout=60) == 128 + signal.SIGINT


def is_in_foreground(person, command):
    """Whether keys that end or stop something reach this command, and it goes on."""
    for process in person.answer("ps", "x"):
        if process["command"] == command:
            stat = Path(f"/proc/{process['pid']}/stat").read_text().rpartition(")")[2].split()
            state, group, foreground = stat[0], stat[2], stat[5]
            return state != "T" and group == foreground
    return False


@as_user
def test_shell_with_job_control(person, terminal, wait_for):
    require("bash")
    person.atoll("new", "x")
    term = terminal("shell", "x")
    term.expect(r"[#$] ")
    term.type("echo begin-$((40+2)); sleep 600\n")
    term.expect("begin-42")
    # Not before it runs in the foreground: earlier, the shell itself would get the key.
    wait_for(lambda: is_in_foreground(person, "sleep 600"), what="the program in the foreground")
    term.type("\x1a")
    term.expect("Stopped")
    term.type("jobs -l; bg; fg\n")
    term.expect(r"\[1\]\+.*Stopped +sleep 600")
    term.expect(r"sleep 600 &")
    term.expect(r"sleep 600\r\n")
    wait_for(lambda: is_in_foreground(person, "sleep 600"), what="the program in the foreground")
    term.type("\x03")
    term.expect(r"[#$] ")
    term.type("jobs; echo marker-$((40+2))-$?\n")
    assert "sleep" not in term.expect("marker-42-0").string.partition("marker-42-0")[0][-40:]
    term.type("exit 9\n")
    assert term.process.wait(timeout=60) == 9


@as_user
def test_full_screen_program(person, terminal):
    require("vim")
    person.atoll("new", "x")
    term = terminal("run", "x", "--", "vim", "-u", "NONE", "-N", "edited.txt", rows=20, cols=70)
    term.expect(r"\[New\]|edited\.txt")
    term.type("ihello from vim")
    term.expect("hello from vim")
    term.resize(30, 100)
    term.expect(r"\x1b\[29;1H")
    term.type("\x1b:set columns?\r")
    term.expect("columns=100")
    term.type("\r:wq\r")
    assert term.process.wait(timeout=60) == 0
    assert person.sh("x", "cat edited.txt") == "hello from vim\n"
    assert not (person.repo / "edited.txt").exists()


def test_attached_terminal_comes_and_goes(person, terminal):
    person.atoll("new", "x")
    person.atoll("run", "-d", "-t", "x", "--", "sh", "-c", "while read l; do echo got-$l; done")
    term = terminal("attach", "x.1")
    term.expect("Ctrl-]")
    term.type("one\n")
    term.expect("got-one")
    term.type("\x1d")
    assert term.process.wait(timeout=60) == 0
    again = terminal("attach", "x")
    again.expect("got-one")
    again.type("\x04")
    again.process.wait(timeout=60)
    assert person.outcome("x")["exit_code"] == 0


def test_closed_terminal_ends_the_run(person, terminal, wait_for):
    person.atoll("new", "x")
    term = terminal("run", "x", "--", "sh", "-c", "trap '' HUP; echo ready; sleep 600")
    term.expect("ready")
    os.close(term.master)
    term.master = os.open(os.devnull, os.O_RDONLY)
    wait_for(lambda: not person.answer("ps", "x"), timeout_s=60, what="the end")
    term.process.wait(timeout=60)
    assert person.outcome("x")["reason"] in ("hangup", "stopped")


def test_nothing_can_be_typed_into_the_owner_s_terminal(person, terminal):
    """The classic way out: a command that pushes characters back to the shell that started it."""
    require("python3")
    person.atoll("new", "x")
    push = (
        "import fcntl, termios\n"
        "for c in b'touch escaped\\n':\n"
        "    fcntl.ioctl(0, termios.TIOCSTI, bytes([c]))\n"
    )
    term = terminal("run", "x", "--", "python3", "-c", push)
    term.expect(r"(Error|Errno)[^\n]*\n")
    assert term.process.wait(timeout=60) == 1
    assert not re.search("touch escaped\n$", term.seen)
    assert not (person.repo / "escaped").exists()
