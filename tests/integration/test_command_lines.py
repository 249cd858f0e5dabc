"""What other users of the machine see in the command lines of Atoll's processes.

A command is visible to them as any command is, but Atoll adds no variable of a capsule to it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from persons import as_user
from present import present

COMMAND = "echo ${#TOKEN}; exec sleep 600"


@pytest.fixture
def secret(person):
    """The value of a variable of this person's capsules, and of no other test's."""
    value = uuid.uuid4().hex
    person.write({"atoll.toml": f'[capsule]\nenv = {{ TOKEN = "{value}" }}\n'})
    person.commit("settings")
    person.atoll("trust")
    return value


def command_lines():
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Gone meanwhile.
            with contextlib.suppress(OSError):
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def holding(text):
    return [line for line in command_lines() if text in line]


@as_user
def test_no_variable_of_a_capsule_is_in_a_command_line(person, secret, wait_for):
    person.atoll("new", "x")
    for options in ((), ("-t",)):
        person.atoll("run", "x", "-d", *options, "--", "sh", "-c", COMMAND)
        log = wait_for(lambda: person.atoll("logs", "x").stdout, what="the run's first words")
        # As a control: the command itself has it, and can be seen.
        assert log.strip() == str(len(secret))
        assert holding("bwrap --args ")
    assert holding(secret) == []
    # As a control: an argument of a plain process is seen by the same search.
    with subprocess.Popen(
        [sys.executable, "-c", "input()", secret], stdin=subprocess.PIPE
    ) as child:
        wait_for(lambda: holding(secret), what="a plain process")
        present(child.stdin).close()
        child.kill()
    person.atoll("stop", "x")


@as_user
def test_no_command_on_the_host_has_a_variable_of_a_capsule(person, secret):
    told = [person.atoll("-v", "new", "x").stderr]
    told.append(person.atoll("-v", "run", "x", "--", "sh", "-c", "echo $TOKEN > made").stderr)
    verbs = (("diff", "x"), ("commit", "x", "-m", "made"), ("export", "x"), ("show", "x"))
    told += [person.atoll("-v", *words).stderr for words in verbs]
    # As a control: commands are told, with their arguments.
    assert "+ " in told[0]
    assert [text for text in told if secret in text] == []
