"""What `spawn` is asked for and what becomes of it: options, defaults, and the owner's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persons import as_user

if TYPE_CHECKING:
    from persons import Person

RECORDER = """\
#!/bin/sh
if test "$1" = --version; then echo 'mine 1.2.3'; exit 0; fi
printf '%s\\n' "$@" > words.txt
"""
MINE = """\
[agents.mine]
title = "Mine"
program = "mine"
needs_login = false
install = "make mine"
[agents.mine.commands]
headless = ["mine", "-p", "{model_options}", "{effort_options}", "--", "{prompt}"]
headless_resume = ["mine", "-c", "{model_options}", "{effort_options}", "--", "{prompt}"]
model = ["--model", "{model}"]
effort = ["--thinking", "{effort}"]
"""


def install(person: Person, *names: str) -> None:
    """Programs of the person's own, on a PATH without any other agent."""
    programs = person.place / "programs"
    for name in names:
        person.write({name: RECORDER}, programs)
        (programs / name).chmod(0o755)
    person.env["PATH"] = f"{programs}:/usr/bin:/bin"


def configure(person: Person, text: str) -> None:
    person.write({"atoll/config.toml": text}, person.place / "config")


def work(person: Person, name: str) -> list[str]:
    """The command line that the recorder got in its last turn."""
    person.atoll("watch", name)
    return person.git("show", f"atoll/{name}:words.txt").splitlines()


CARRY = (
    MINE
    + """\
[[agents.mine.carry]]
path = "~/.mine/MEMORY.md"
[[agents.mine.carry]]
path = "~/.mine/skills"
[[agents.mine.carry]]
path = "~/.mine/config.toml"
writable = true
"""
)
MODES = "cd ~/.mine && stat -c '%a %n' MEMORY.md skills/* config.toml; cat MEMORY.md"


@as_user
def test_copies_are_read_only_and_are_made_again(person: Person) -> None:
    install(person, "mine")
    configure(person, CARRY)
    memory = {"MEMORY.md": "one\n", "skills/a.md": "skill\n", "config.toml": "x = 1\n"}
    person.write(memory, person.place / "owner" / ".mine")
    person.atoll("spawn", "mine", "first", "--name", "x", "-q")
    person.atoll("watch", "x")
    shown = "400 MEMORY.md\n400 skills/a.md\n600 config.toml\n"
    assert person.sh("x", MODES) == f"{shown}one\n"
    person.sh("x", "if test $(id -u) != 0; then ! echo no >> ~/.mine/MEMORY.md; fi")

    person.atoll("snapshot", "x", "-m", "first")
    person.write({"MEMORY.md": "two\n"}, person.place / "owner" / ".mine")
    person.atoll("spawn", "mine", "second", "--in", "x", "-q")
    person.atoll("watch", "x")
    assert person.sh("x", MODES) == f"{shown}two\n"

    person.atoll("fork", "x", "y", "-q")
    person.atoll("rollback", "x", "1")
    assert person.sh("x", MODES) == f"{shown}one\n"
    for name in ("x", "y"):
        person.atoll("spawn", "mine", "third", "--in", name, "-q")
        person.atoll("watch", name)
        assert person.sh(name, MODES) == f"{shown}two\n"
