"""Pipes and slow filters in the place of git's files: nothing waits for them, nothing is lost."""

from __future__ import annotations

import time

import pytest

from persons import as_user

FIFO = "rm -f {0}; mkfifo {0}"
PLANTS = {
    "settings of the home": FIFO.format("~/.gitconfig"),
    "settings": FIFO.format(".git/config"),
    "head": FIFO.format(".git/HEAD"),
    "index": FIFO.format(".git/index"),
    "attributes": FIFO.format(".gitattributes"),
    "attributes of the repository": "mkdir -p .git/info; " + FIFO.format(".git/info/attributes"),
    "what is ignored": FIFO.format(".gitignore"),
    "packed refs": FIFO.format(".git/packed-refs"),
    "borrowed objects": FIFO.format(".git/objects/info/alternates"),
    "the branch": FIFO.format(".git/refs/heads/atoll/x"),
    "an included file": "mkfifo /tmp/more; git config include.path /tmp/more",
    "a filter": "echo '* filter=slow' > .gitattributes; git config filter.slow.clean 'sleep 999'; "
    "echo changed >> README.md",
}
PROMPT_S = 60.0
"""Where a command that waits would never end; on a machine that others use, too."""


def prompt(person, *words):
    began = time.monotonic()
    done = person.atoll(*words, check=False)
    assert time.monotonic() - began < PROMPT_S, words
    assert "Traceback" not in done.stderr
    return done


def require_kept(person):
    """The file that only the capsule had."""
    [saved] = person.home.glob("recovered/x/*/**/work")
    assert saved.read_text() == "mine\n"


@pytest.mark.parametrize("plant", PLANTS)
def test_git_that_waits(person, plant):
    person.atoll("new", "x")
    person.atoll("run", "x", "--", "sh", "-c", f"echo mine > work; {PLANTS[plant]}")
    diff = prompt(person, "diff", "x")
    if diff.returncode:
        # Some of these files git reads only if they are files.
        assert diff.returncode == 5, diff
        assert "has been idle for 3 s inside the capsule" in diff.stderr or "fatal" in diff.stderr
    refused = prompt(person, "rm", "x")
    assert refused.returncode == 4, refused
    prompt(person, "rm", "x", "--force")
    assert person.answer("ls") == []
    if not list(person.home.glob("recovered/x/*")):
        # Then git could store it after all.
        [commit] = person.git(
            "for-each-ref", "--format=%(objectname)", "refs/atoll/recovery"
        ).split()
        assert person.git("show", f"{commit}:work") == "mine\n"
    else:
        require_kept(person)


@as_user
def test_every_verb_is_prompt(person):
    person.atoll("new", "x")
    person.sh(
        "x",
        "echo mine > work; git add work; git commit -qm mine; rm .git/config; mkfifo .git/config",
    )
    for words, code in (
        (("show", "x"), 0),
        (("export", "x"), 0),
        # Only this would have git run inside.
        (("commit", "x", "-m", "y"), 4),
        (("diff", "x", "--stat"), 0),
    ):
        done = prompt(person, *words)
        assert done.returncode == code, done
    assert prompt(person, "run", "x", "--", "true").returncode == 0
    assert prompt(person, "rm", "x", "--force").returncode == 0
    [point] = person.answer("recover")
    assert person.git("show", f"{point['commit']}:work") == "mine\n"


def test_control_hooks_may_wait(person):
    person.atoll("new", "x")
    person.sh("x", """
        echo new > new; mkdir -p .git/hooks
        printf '#!/bin/sh\\nsleep 5\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
    """)  # fmt: skip
    person.atoll("commit", "x", "-m", "new")
    assert person.git("log", "--format=%s", "-1", "atoll/x") == "new\n"
