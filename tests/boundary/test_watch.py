"""The watcher itself: each rule fires for a program that breaks it, and for no other.

The program under test is played by a few lines of Python, which stand where `atoll` would.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from boundary.cases import Case, random_case
from boundary.fuzz import Trial
from boundary.owner import place_file
from boundary.rules import check

GIT_IN_A_LAYER = """
os.makedirs(f'{home}/pools/p/layers/u1/tree/r')
os.chdir(f'{home}/pools/p/layers/u1/tree/r')
os.spawnv(os.P_WAIT, '/usr/bin/git', ['git', 'init', '-q'])
os.execv('/usr/bin/git', ['git', 'status'])
"""
# What bwrap starts apart is inside, whatever it does.
APART = """
words = ['bwrap', '--unshare-pid', '--bind', '/', '/', '--dev', '/dev', '--', '/bin/sh', '-c']
command = f'cat {owner}/.bash_history && cp --version'
os.execv('/usr/bin/bwrap', [*words, f'({command}) >/dev/null'])
"""
BREAKS = {
    "program": [
        "os.execv(f'{project}/.venv/bin/git', ['git'])",
        "os.execv('/usr/bin/cp', ['cp', '--version'])",
        "os.execv('/bin/sh', ['sh', '-c', 'true'])",
        "os.posix_spawn('/bin/sh', ['sh', '-c', 'true'], {})",
    ],
    "program lookup": ["os.execvpe('no-such-program', ['x'], {'PATH': f'{project}/.venv/bin'})"],
    "read outside": [
        "open(f'{project}/link').read()",
        "os.fork() or open(f'{owner}/.bash_history').read()",
    ],
    "write outside": [
        "open(f'{owner}/new', 'w').close()",
        "os.chdir(owner); os.mkdir('new')",
        "os.symlink('a', 'new', dir_fd=os.open(owner, os.O_RDONLY))",
    ],
    "git in a capsule": [GIT_IN_A_LAYER],
    "connect": [
        "import socket; socket.socket().connect_ex(('127.0.0.1', 9))",
        "import socket; socket.socket(socket.AF_UNIX).connect_ex('/run/dbus/system_bus_socket')",
    ],
    "canary": ["os.write(1, bytes.fromhex(SECRET))"],
    "executed": ["open(f'{place}/markers/executed', 'w').close()"],
    "forged record": ["print('/forged')"],
    "control characters": ["print('\\x1b]0;owned\\x07')"],
    "traceback": ["raise ValueError"],
    "exit": ["sys.exit(77)"],
    "memory": ["content = b'x' * (500 << 20); [content.count(b'y') for _ in range(20)]"],
    "output": ["[os.write(1, b'x' * (1 << 20)) for _ in range(40)]"],
}
HARMLESS = [
    "os.execv('/usr/bin/git', ['git', 'version'])",
    "open(f'{project}/README').read()",
    "os.makedirs(f'{home}/new'); open(f'{home}/new/file', 'w').close()",
    "sys.exit(4)",
    APART,
]


@pytest.fixture
def trial():
    trial = Trial(Case("watch"))
    yield trial
    trial.owner.remove()


def play(trial, code):
    owner = trial.owner
    names = {
        "project": owner.project, "owner": owner.home, "home": owner.atoll_home,
        "place": owner.place, "SECRET": next(iter(owner.canaries)).encode().hex(),
    }  # fmt: skip
    lines = ["import os, sys", *(f"{name} = {str(value)!r}" for name, value in names.items()), code]
    place_file(owner.project / ".venv/bin/git", "#!/bin/sh\ntrue\n")
    (owner.project / "link").symlink_to(owner.home / ".ssh/id_rsa")
    owner.program = (sys.executable, "-c", "\n".join(lines))
    return check(owner, "show", owner.atoll())


@pytest.mark.parametrize(("kind", "code"), [(k, code) for k in BREAKS for code in BREAKS[k]])
def test_a_breach_is_found(walls, trial, kind, code):
    found = play(trial, code)
    assert kind in {problem.kind for problem in found}, found


@pytest.mark.parametrize("code", HARMLESS)
def test_what_is_allowed_is_no_finding(walls, trial, code):
    assert play(trial, code) == []


def test_a_command_that_does_not_end_is_ended(walls, trial):
    owner = trial.owner
    owner.program = (sys.executable, "-c", "import signal; signal.pause()")
    done = owner.atoll(timeout_s=1)
    assert [problem.kind for problem in check(owner, "show", done)] == ["timeout"]
    owner.remove()
    assert owner.processes() == {}


def test_a_process_that_stays_is_found(walls, trial):
    play(
        trial,
        "os.fork() and os._exit(0); os.setsid(); os.execv('/usr/bin/sleep', ['sleep', '1000'])",
    )
    trial._check_processes("show")
    assert [problem.kind for problem in trial.problems] == ["process left"]
    assert "sleep 1000" in trial.problems[0].detail


def test_a_changed_file_of_the_owner_is_found(walls, trial):
    before = trial.owner.portrait()
    (trial.owner.project / ".git/config").write_text("[core]\n")
    (trial.owner.project / "README").write_text("other\n")
    (trial.owner.home / ".bash_history").unlink()
    trial._compare(before)
    changed = {problem.detail.partition(":")[0] for problem in trial.problems}
    assert changed == {"project/.git/config", "project/README", "owner/.bash_history"}


def test_a_canary_in_a_layer_or_an_object_is_found(walls, trial):
    owner = trial.owner
    assert owner.leaks() == []
    secret = next(iter(owner.canaries))
    place_file(owner.atoll_home / "layers/u1/tree/copy", secret)
    (owner.atoll_home / "link").symlink_to(owner.home / ".ssh/id_rsa")
    assert owner.leaks() == ["atoll/layers/u1/tree/copy holds a canary"]
    words = ["git", "hash-object", "-w", "--stdin"]
    subprocess.run(words, cwd=owner.project, input=secret.encode(), check=True, capture_output=True)
    assert len(owner.leaks()) == 2


def test_a_case_is_the_same_for_the_same_seed():
    assert random_case(7) == random_case(7)
    assert len({random_case(seed) for seed in range(50)}) == 50
