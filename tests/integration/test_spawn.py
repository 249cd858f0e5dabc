"""What `spawn` is asked for and what becomes of it: options, defaults, and the owner's files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persons import as_user

if TYPE_CHECKING:
    from persons import Person

RECORDER = """\
#!/bin/sh
if test "$1" = --version; then echo 'mine 1.2.3'; exit 0; fi
printf '%s\\n' "$@" > words.txt
echo 'I have written it.'
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


NEEDY = """\
[agents.needy]
title = "Needy"
program = "needy"
install = "make needy"
commands = { headless = ["needy", "{prompt}"] }
[[agents.needy.logins]]
kind = "key"
title = "API key"
variable = "NEEDY_API_KEY"
hosts = ["api.example.org"]
cure = "export NEEDY_API_KEY=…"
[agents.absent]
title = "Absent"
program = "absent"
install = "make absent"
needs_login = false
commands = { headless = ["absent", "{prompt}"] }
"""
KEY = {"NEEDY_API_KEY": "sk-real-0123456789"}


def line_of(person: Person, name: str, **options: Any) -> list[str]:
    """The cells of an agent in the list of those that are available."""
    found = person.atoll("agents", "--available", **options).stdout.splitlines()
    [line] = [line for line in found if line.split()[0] == name]
    return re.split(r" {2,}", line.strip())


@as_user
def test_agents_that_are_available(person: Person) -> None:
    install(person, "mine", "needy")
    configure(person, MINE + NEEDY)
    cells = person.atoll("agents", "--available").stdout.splitlines()[0].split("  ")
    assert [cell.strip() for cell in cells if cell] == [
        "NAME", "AGENT", "VERSION", "LOGIN", "TO USE IT",
    ]  # fmt: skip
    assert line_of(person, "mine") == ["mine", "Mine", "1.2.3", "not needed", "-"]
    assert line_of(person, "needy") == [
        "needy", "Needy", "1.2.3", "not logged in", "export NEEDY_API_KEY=…",
    ]  # fmt: skip
    assert line_of(person, "needy", env=KEY) == ["needy", "Needy", "1.2.3", "API key", "-"]
    assert line_of(person, "absent") == [
        "absent", "Absent", "not installed", "not needed", "make absent",
    ]  # fmt: skip
    found = {one["name"]: one for one in person.answer("agents", "--available")}
    # Thirteen of Atoll's own.
    assert len(found) == 16
    assert found["mine"] == {
        "name": "mine", "title": "Mine", "program": str(person.place / "programs" / "mine"),
        "version": "1.2.3", "login": "not needed", "usable": True, "cure": None,
    }  # fmt: skip
    assert (found["needy"]["usable"], found["needy"]["login"]) == (False, "not logged in")
    absent = found["absent"]
    assert (absent["usable"], absent["program"], absent["cure"]) == (False, None, "make absent")


def spawned(person: Person, *words: str, code: int = 0, **env: str) -> str:
    """Which agent started, or why none did."""
    done = person.atoll("spawn", *words, check=False, env=env)
    assert done.returncode == code, done.stderr
    return str(done.stderr)


@as_user
def test_agent_that_is_used_when_none_is_named(person: Person) -> None:
    install(person, "mine")
    configure(person, MINE + NEEDY)
    assert "started mine in `fix-it`" in spawned(person, "fix it")
    assert work(person, "fix-it") == ["-p", "--", "fix it"]

    install(person, "mine", "needy")
    said = spawned(person, "fix it", code=2)
    assert "several agents are installed: `mine`, `needy`" in said
    assert 'hint: name one: atoll spawn mine "PROMPT", or set `[agent] default`' in said

    configure(person, MINE + NEEDY + '[agent]\ndefault = "mine"\n')
    assert "started mine in `fix-that`" in spawned(person, "fix that")
    assert work(person, "fix-that") == ["-p", "--", "fix that"]
    configure(person, MINE + NEEDY + '[agent]\ndefault = "absent"\n')
    said = spawned(person, "fix it", code=3)
    assert "Absent is not installed: there is no `absent` on your PATH" in said
    assert "hint: make absent" in said


@as_user
def test_agent_that_is_not_logged_in(person: Person) -> None:
    install(person, "needy")
    configure(person, NEEDY)
    said = spawned(person, "needy", "fix it", code=4)
    assert "error: Needy is not logged in" in said
    assert "hint: export NEEDY_API_KEY=…, or: atoll secret set NEEDY_API_KEY" in said
    assert person.answer("ls") == []


@as_user
def test_model_and_effort_reach_the_command_line(person: Person) -> None:
    install(person, "mine")
    configure(person, MINE)
    person.atoll("spawn", "mine", "fix it", "--model", "m 1", "--effort", "high", "--name", "x")
    assert work(person, "x") == ["-p", "--model", "m 1", "--thinking", "high", "--", "fix it"]
    person.atoll("tell", "x", "-q", "and more")
    assert work(person, "x") == ["-c", "--model", "m 1", "--thinking", "high", "--", "and more"]
    # The adapter's own is used when none is chosen.
    configure(person, MINE.replace("needs_login", 'model = "usual"\nneeds_login'))
    person.atoll("spawn", "mine", "fix it", "--name", "y")
    assert work(person, "y") == ["-p", "--model", "usual", "--", "fix it"]


@as_user
def test_option_that_the_command_line_does_not_have(person: Person) -> None:
    install(person, "mine")
    configure(person, MINE.replace('"{effort_options}", ', ""))
    done = person.atoll("spawn", "mine", "fix it", "--effort", "high", check=False)
    assert done.returncode == 2
    assert "`mine` has no option for an effort" in done.stderr
    assert person.answer("ls") == []


@as_user
def test_repository_at_a_path(person: Person) -> None:
    install(person, "mine")
    configure(person, MINE)
    other = person.make_repo(name="other")
    done = person.atoll("spawn", "mine", "fix it", "--repo", other, cwd=person.place)
    assert f"hint: atoll watch fix-it --project {other}" in done.stderr
    person.atoll("watch", "fix-it", "--project", other)
    assert person.git("log", "-1", "--format=%s", "atoll/fix-it", cwd=other) == "fix it\n"
    assert person.answer("ls") == []
    refused = person.atoll("spawn", "mine", "x", "--repo", person.place / "owner", check=False)
    assert refused.returncode == 4
    # Relative to where the command runs.
    person.atoll("spawn", "mine", "again", "--repo", "other", cwd=person.place)
    person.atoll("watch", "again", "--project", other)
    person.atoll("rm", "fix-it", "again", "--force", "--project", other)


@as_user
def test_prompt_from_a_file(person: Person) -> None:
    install(person, "mine")
    configure(person, MINE)
    person.write({"task.md": "# Fix it\n\n- all of it\n"}, person.place / "owner")
    path = person.place / "owner" / "task.md"
    person.atoll("spawn", "mine", "--prompt-file", path, "--name", "x")
    assert work(person, "x") == ["-p", "--", "# Fix it", "", "- all of it", ""]
    person.atoll("spawn", "mine", "--prompt-file", "-", "--name", "y", input="from a pipe")
    assert work(person, "y") == ["-p", "--", "from a pipe"]
    for words, code, said in (
        (("--prompt-file", path, "and this"), 2, "`--prompt-file` and PROMPT are both given"),
        (("--prompt-file", "missing.md"), 2, "cannot read `missing.md`: No such file"),
        (("--prompt-file", "-"), 2, "is empty"),
    ):
        done = person.atoll("spawn", "mine", *words, check=False)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
