"""`atoll edit`: the owner's programs among an agent's files, of which none is ever executed."""

from __future__ import annotations

import os

import pytest

from persons import as_user

PLANT = """
printf '#!/bin/sh\\nid > %s/marker-$(basename $0)\\ncat\\n' "$PLACE" > evil
chmod +x evil
for name in fsmonitor clean textconv hook nested; do cp evil .git/$name; done
git config core.fsmonitor "$PWD/.git/fsmonitor"
git config filter.e.clean "$PWD/.git/clean"
git config diff.e.textconv "$PWD/.git/textconv"
mkdir -p .git/hooks
for name in post-index-change pre-commit reference-transaction; do
    cp evil .git/hooks/$name
done
echo '* filter=e diff=e' > .gitattributes
git init -q sub
(cd sub && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x)
git -C sub config core.fsmonitor "$PWD/.git/nested"
git -C sub config filter.e.clean "$PWD/.git/nested"
echo '* filter=e' > sub/.gitattributes
printf '[submodule "sub"]\\n\\tpath = sub\\n\\turl = ./sub\\n\\tignore = none\\n' > .gitmodules
echo changed > README.md
echo new > new
"""
AGENTS_OWN = ("env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_CONFIG_COUNT")


@pytest.fixture
def planted(person):
    """A capsule whose repository starts programs wherever git can be made to; with a submodule."""
    level = "clone" if person.who == "root" else "sandbox"
    commit = person.git("rev-parse", "HEAD").strip()
    person.git("update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    person.git("commit", "-q", "-m", "with a submodule")
    person.atoll("new", "x", "--level", level)
    # At level `sandbox` the capsule cannot write there: the name must come out all the same.
    person.sh("x", f"PLACE={person.place}; {PLANT}")
    return person


def markers(person):
    return sorted(path.name for path in person.place.glob("marker-*"))


@as_user
def test_git_tells_the_truth_and_runs_nothing_planted(planted):
    told = planted.atoll("edit", "x", "--", "git", "status", "--porcelain").stdout.splitlines()
    assert {" M README.md", "?? new", "?? evil", "?? .gitattributes"} <= set(told), told
    told = planted.atoll("edit", "x", "--", "git", "diff", "--submodule=diff").stdout
    assert "+changed" in told
    for words in (("add", "-A"), ("diff", "--cached", "--stat"), ("submodule", "summary"),
                  ("-C", "sub", "status"), ("commit", "-a", "-m", "lost")):  # fmt: skip
        planted.atoll("edit", "x", "--", "git", *words, check=False)
    planted.atoll("edit", "x", "--", "sh", "-c", "cd sub && git status && git diff", check=False)
    assert markers(planted) == []
    # As a control: without the environment that `edit` gives, all of it is run as the owner.
    planted.atoll("edit", "x", "--", *AGENTS_OWN, "git", "status", check=False)
    planted.atoll("edit", "x", "--", *AGENTS_OWN, "git", "diff", check=False)
    assert "marker-fsmonitor" in markers(planted)
    assert "marker-textconv" in markers(planted)
    assert "marker-nested" in markers(planted)


@as_user
def test_git_reads_no_object_that_only_the_agent_has(planted):
    planted.sh("x", "echo mine > mine; git hash-object -w mine > id")
    asked = ("git", "cat-file", "-p", planted.sh("x", "cat id").strip())
    assert planted.atoll("edit", "x", "--", *asked, check=False).returncode == 128
    assert planted.atoll("edit", "x", "--", "git", "log", "--format=%s").stdout.startswith("with")
    # As a control: the agent's own repository has it.
    words = ("env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", *asked)
    assert planted.atoll("edit", "x", "--", *words, check=False).stdout == "mine\n"


@as_user
def test_a_commit_is_refused_rather_than_lost(planted):
    words = ("git", "commit", "-a", "-m", "mine")
    done = planted.atoll("edit", "x", "--", *words, check=False)
    assert done.returncode != 0
    assert "atoll commit" in done.stderr


@as_user
def test_no_program_of_the_project_is_started(planted):
    plant = (
        "mkdir -p .venv/bin; for p in git ls my-editor; do "
        "cp evil .venv/bin/$p; done; chmod +x .venv/bin/*"
    )
    planted.sh("x", plant)
    venv = f"{planted.repo}/.venv"
    # It must be there on the host, too, or no PATH leads to it.
    os.makedirs(f"{venv}/bin", exist_ok=True)
    env = {"PATH": f"{venv}/bin:.venv/bin::{planted.env['PATH']}", "VIRTUAL_ENV": venv,
           "PYTHONPATH": f"{planted.repo}:/nowhere", "BASH_ENV": ".venv/bin/git"}  # fmt: skip
    shown = planted.atoll("edit", "x", "--", "sh", "-c", "ls; git status; env", env=env).stdout
    assert markers(planted) == []
    variables = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    assert variables["PATH"] == planted.env["PATH"]
    assert variables["PYTHONPATH"] == "/nowhere"
    assert not {"VIRTUAL_ENV", "BASH_ENV"} & set(variables)
    for name in ("my-editor", "./evil", f"{venv}/bin/git", "evil", "../repo/evil"):
        done = planted.atoll("edit", "x", "--", name, env=env, check=False)
        assert done.returncode == 3, done
        assert "was not found on your PATH" in done.stderr
        assert f"hint: atoll run x -- {name}" in done.stderr
    assert markers(planted) == []
    # As a control: with such a PATH it is started, as the owner.
    words = ("env", f"PATH={env['PATH']}", "my-editor")
    planted.atoll("edit", "x", "--", *words, env=env)
    assert markers(planted) == ["marker-my-editor"]
