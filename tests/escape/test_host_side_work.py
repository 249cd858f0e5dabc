"""Work that a capsule holds in unusual ways is seen, shown and kept, whatever it did to hide it.

Found by attacking and by using the host side that decides from files.
"""

from __future__ import annotations

import json

import pytest

import hostile
from hostile import as_both, as_user

owner = hostile.owner

IDENTITY = "git config user.name a; git config user.email a@b; "


def refused(owner, name):
    """`rm` refuses, and says why."""
    done = owner.atoll("rm", name, check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    return done.stderr


UNSEEN = {
    "large": "seq 1 2000 >new.txt",
    "link": "ln -s /etc/passwd new",
    "empty": ": >new.txt",
    "sparse": "truncate -s 3G big",
    "split-index": "git update-index --split-index; echo s >f; git add f; rm f",
    "closed-branch": IDENTITY + "git checkout -qb other; git commit -q --allow-empty -m o; "
    "git checkout -q -; chmod 000 .git/refs/heads/other",
    "closed-branches": IDENTITY + "git checkout -qb other; git commit -q --allow-empty -m o; "
    "git checkout -q -; chmod 000 .git/refs/heads",
    "packed-refs-link": IDENTITY + "git checkout -qb other; git commit -q --allow-empty -m o; "
    "git checkout -q -; git pack-refs --all; mv .git/packed-refs /tmp/pr; "
    "ln -s /tmp/pr .git/packed-refs",
    "odd-ref": IDENTITY + "git update-ref refs/keep/z $(git commit-tree -p HEAD -m z HEAD^{tree})",
    "staged-and-ignored": "mkdir -p build; echo v >build/keep; git add -f build/keep; "
    "echo later >>build/keep",
}


@as_both
def test_plain_removal_refuses(owner):
    owner.atoll("new", "w", "-n", str(len(UNSEEN)))
    for number, script in enumerate(UNSEEN.values(), 1):
        owner.inside(script, f"w-{number}")
        assert "exists nowhere else" in refused(owner, f"w-{number}"), script


@as_both
def test_forced_removal_keeps_them(owner):
    """In the point, or as files."""
    for name, script, text in (
        ("s", UNSEEN["staged-and-ignored"], "later"),
        ("g", "echo precious >f; git add f; echo other >f; git gc -q", "precious"),
        ("l", UNSEEN["large"], "1999"),
    ):
        owner.atoll("new", name)
        owner.inside(script, name)
        owner.atoll("rm", name, "--force")
        [point] = [p for p in json.loads(owner.atoll("recover", "--json").stdout)["data"]
                   if p["capsule"] == name]  # fmt: skip
        owner.atoll("recover", point["id"], "--as", f"{name}2")
        inside = owner.inside("cat f new.txt build/keep 2>/dev/null; git show :f; true", f"{name}2")
        assert text in inside or point["files"] is not None


@as_both
def test_a_closed_workspace_can_be_removed(owner):
    """Not even its top can be opened by an ordinary user."""
    owner.atoll("new", "c")
    owner.inside("echo precious >f; chmod 000 .", "c", check=False)
    owner.atoll("show", "c")
    owner.atoll("rm", "c", "--force")
    assert owner.atoll("ls").stdout.count("\n") <= 1


@as_user
@pytest.mark.parametrize(
    "leaf", ["printf '100644 blob %s\\tf\\n' $b", "true"], ids=["file", "none"]
)
def test_trees_that_unfold_hold_nothing_up(owner, leaf):
    """The capsule goes, with its files, and other commands do not wait for it."""
    owner.atoll("new", "b")
    owner.inside(
        IDENTITY + f"b=$(echo x | git hash-object -w --stdin); t=$({leaf} "
        "| git mktree); for i in 1 2 3 4 5 6 7 8 9; do t=$(for n in 0 1 2 3 4 5 6 7 8 9; do "
        "printf '040000 tree %s\\t%s\\n' $t $n; done | git mktree); done; "
        "git update-ref HEAD $(git commit-tree -p HEAD -m bomb $t); echo keep >kept.txt",
        "b",
    )
    owner.atoll("show", "b")
    owner.atoll("rm", "b", "--force")
    assert json.loads(owner.atoll("ls", "--json").stdout)["data"] == []


@as_user
def test_many_files_in_a_few_trees_are_not_gone_through(owner):
    """Two million that four objects make: each would cost a thousand bytes and more."""
    owner.atoll("new", "b")
    owner.inside(
        IDENTITY + "b=$(echo x | git hash-object -w --stdin); "
        "list() { for n in $(seq 1450); do printf '%s %s\\t%s\\n' \"$1\" $2 $n; done; }; "
        't=$(list "100644 blob" $b | git mktree); t=$(list "040000 tree" $t | git mktree); '
        "git update-ref HEAD $(git commit-tree -p HEAD -m bomb $t); echo keep >kept.txt",
        "b",
    )
    done = owner.atoll("diff", "b", check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "expands to too many files" in done.stderr
    assert "cannot be compared" in owner.atoll("show", "b").stdout
    owner.atoll("rm", "b", "--force")
    assert json.loads(owner.atoll("ls", "--json").stdout)["data"] == []


@as_both
def test_diff_names_another_version_in_the_branch(owner):
    owner.atoll("new", "d")
    owner.inside(
        IDENTITY + "echo EVIL >README.md; git commit -qam evil; echo benign >README.md", "d"
    )
    shown = owner.atoll("diff", "d")
    assert "README.md" in shown.stderr
    owner.inside("printf '*\\n' >src/.gitignore; echo evil >src/conftest.py", "d")
    shown = owner.atoll("diff", "d")
    assert "src/.gitignore" in shown.stdout
    assert "ignored entries are not shown" in shown.stderr


@as_both
def test_a_name_that_git_reserves_hides_nothing_else(owner):
    owner.atoll("new", "n")
    owner.inside("echo x >git~1; echo more >>README.md", "n")
    shown = owner.atoll("diff", "n")
    assert "+more" in shown.stdout
    assert "git~1" in shown.stderr


@as_both
def test_an_id_in_the_index_is_no_right_to_an_object(owner):
    owner.run("sh", "-ec", "git checkout -qb secret; echo TOPSECRET >sec; git add sec; "
              "git commit -qm s; git checkout -q main")  # fmt: skip
    blob = owner.git("rev-parse", "secret:sec").strip()
    owner.atoll("new", "i")
    plant = f"git update-index --add --info-only --cacheinfo 100644,{blob},stolen; echo y >y"
    owner.inside(plant, "i")
    # Control: the index names it, and it cannot be read.
    assert blob in owner.inside("git ls-files -s", "i")
    assert "TOPSECRET" not in owner.inside(f"git cat-file -p {blob}; true", "i")
    owner.atoll("rm", "i", "--force")
    owner.atoll("recover", "i")
    assert "TOPSECRET" not in owner.inside(f"git cat-file -p {blob}; cat stolen; true", "i")


@as_both
def test_commit_keeps_what_the_agent_committed_although_ignored(owner):
    owner.atoll("new", "k")
    owner.inside(
        IDENTITY + "mkdir -p build; echo v >build/o; git add -f build/o; git commit -qm o; "
        "echo more >>README.md",
        "k",
    )
    assert "build/o" in owner.atoll("diff", "k").stdout
    owner.atoll("commit", "k", "-m", "second")
    assert owner.git("show", "--stat", "--format=", "atoll/k").strip().startswith("README.md")
    assert owner.git("show", "atoll/k:build/o") == "v\n"


@as_both
def test_hooks_see_everything_staged(owner):
    owner.atoll("new", "h")
    owner.inside(
        "printf '#!/bin/sh\\n! git diff --cached | grep -q FORBIDDEN\\n' >.git/hooks/pre-commit; "
        'printf \'#!/bin/sh\\necho "Change-Id: I1" >>"$1"\\n\' >.git/hooks/commit-msg; '
        "chmod +x .git/hooks/*; echo FORBIDDEN >>README.md",
        "h",
    )
    assert owner.atoll("commit", "h", "-m", "x", check=False).returncode == 5
    owner.inside("echo fine >README.md", "h")
    owner.atoll("commit", "h", "-m", "first")
    assert owner.git("log", "-1", "--format=%B", "atoll/h").startswith("first\nChange-Id: I1\n")
    assert owner.atoll("commit", "h", "-m", " ", check=False).returncode == 4


@pytest.mark.slow
@as_user
def test_many_directories_are_one_question(owner):
    owner.atoll("new", "m")
    owner.inside("mkdir -p $(seq -f d/%g 1 3000); echo x >d/1/f", "m")
    assert "d/1/f" in owner.atoll("diff", "m", "--stat").stdout
