"""`atoll edit` and `atoll code`: an editor of the owner's on a capsule's files."""

from __future__ import annotations

import json

import pytest

import persons
from persons import as_user

RECORD = """#!/bin/sh
for word in "$0" "$@"; do printf '%s\\n' "$word"; done > {place}/started
echo "$IDEA_PROPERTIES" >> {place}/started
pwd >> {place}/started
cat README.md >> {place}/started
"""


@pytest.fixture
def editing(person):
    """A capsule whose README says `inside`; `editing.tools` is on PATH, for editors."""
    person.tools = person.place / "tools"
    person.run("mkdir", person.tools)
    person.env["PATH"] = f"{person.tools}:{person.env['PATH']}"
    level = "clone" if person.who == "root" else "sandbox"
    person.atoll("new", "x", "--level", level)
    person.sh("x", "echo inside > README.md")
    return person


def install(person, *names):
    """Editors that write down how they were started, and what they see."""
    text = RECORD.format(place=person.place)
    person.write(dict.fromkeys(names, text), root=person.tools)
    for name in names:
        (person.tools / name).chmod(0o755)


def started(person):
    return (person.place / "started").read_text().splitlines()


@as_user
def test_code_opens_an_instance_of_its_own(editing):
    install(editing, "code")
    trusted = "globalStorage/state.vscdb"
    settings = {"settings.json": '{"a": 1}', trusted: "trusted folders", "other": "other"}
    editing.write(settings, root=editing.place / "config/Code/User")
    editing.atoll("code", "x", "--", "src", "-odd name")
    program, *words = started(editing)
    repo = str(editing.repo)
    [data] = editing.home.glob("projects/*/x/editors/code")
    own = ["--wait", "--new-window", "--user-data-dir", str(data)]
    own += ["--no-sandbox"] if editing.who == "root" else []
    assert program == str(editing.tools / "code")
    assert words == [*own, f"{repo}/src", f"{repo}/-odd name", "", repo, "inside"]
    # Preferences come along, the trust in the checkout at the same path does not.
    assert json.loads((data / "User/settings.json").read_text()) == {"a": 1}
    assert [path.name for path in (data / "User").iterdir()] == ["settings.json"]
    assert (editing.repo / "README.md").read_text() == "# Sample\n"
    editing.atoll("rm", "--force", "x")
    assert not data.exists()


@as_user
def test_code_with_another_editor(editing):
    install(editing, "idea", "my-editor")
    editing.atoll("code", "x", "--with", "my-editor")
    repo = str(editing.repo)
    assert started(editing) == [f"{editing.tools}/my-editor", repo, "", repo, "inside"]
    editing.atoll("code", "x")
    program, opened, properties, *_ = started(editing)
    assert (program, opened) == (f"{editing.tools}/idea", repo)
    with open(properties) as stream:
        assert "idea.config.path=" in stream.read()


@as_user
def test_code_refuses(editing):
    done = editing.atoll("code", "x", check=False)
    assert done.returncode == 3
    assert "is on your PATH" in done.stderr
    install(editing, "code")
    for path in ("..", "/etc/passwd", "src/../../other"):
        done = editing.atoll("code", "x", path, check=False)
        assert done.returncode == 2, done
        assert "is not in the workspace" in done.stderr
    # Neither from the workspace nor from the checkout is a program ever started.
    editing.write({"bin/codium": RECORD.format(place=editing.place)})
    (editing.repo / "bin/codium").chmod(0o755)
    env = {"PATH": f"{editing.repo}/bin:{persons.PATH}"}
    assert editing.atoll("code", "x", env=env, check=False).returncode == 3
    assert editing.atoll("code", "x", "--with", "codium", env=env, check=False).returncode == 3
    assert not (editing.place / "started").exists()


@as_user
def test_edit_without_a_command_opens_the_owners_editor(editing):
    persons.require("vim")
    change = "vim -es -c 'edit README.md' -c '%s/inside/edited/' -c 'wqa!'"
    editing.atoll("edit", "x", env={"EDITOR": change, "VISUAL": ""})
    assert editing.sh("x", "cat README.md") == "edited\n"
    assert (editing.repo / "README.md").read_text() == "# Sample\n"
    done = editing.atoll("edit", "x", env={"VISUAL": "vim 'x"}, check=False)
    assert done.returncode == 2


@as_user
def test_editors_start_where_the_user_is(editing):
    below = editing.repo / "src"
    editing.atoll("edit", "x", "--", "sh", "-c", "echo two >> calc.py", cwd=below)
    editing.atoll("edit", "x", "--cwd", ".", "--", "sh", "-c", "echo top > top", cwd=below)
    assert editing.sh("x", "cat src/calc.py src/top") == "one = 1\ntwo\ntop\n"
    install(editing, "code")
    editing.sh("x", "cp README.md src")
    editing.atoll("code", "x", "calc.py", cwd=below)
    assert f"{below}/calc.py" in started(editing)


def test_edit_as_root_behind_walls(person):
    if person.who != "root":
        pytest.skip("only root's capsules have a user of their own")
    persons.require("vim")
    person.atoll("new", "x")
    change = "vim -es -c 'edit README.md' -c '%s/Sample/edited/' -c 'wqa!'"
    done = person.atoll("edit", "x", env={"EDITOR": change})
    assert "inside the sandbox" in done.stderr
    assert person.sh("x", "cat README.md; stat -c %U README.md") == "# edited\nagent\n"


@as_user
def test_path_says_what_editors_need(editing):
    done = editing.atoll("path", "x")
    assert done.stdout.startswith("/proc/")
    assert "hint: for an editor or git: atoll edit x; atoll code x" in done.stderr
