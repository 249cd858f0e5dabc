"""What an agent plants in its repository is executed neither outside nor inside because the owner
looked at the capsule.

Every plant has a control: the same lines in a plain clone, with the command of git that believes
them.
"""

from __future__ import annotations

import pytest

import hostile
from git_plants import MISSING, PLANTS
from hostile import ENDINGS, LOOKS, as_both

owner = hostile.owner
ATTRIBUTES = "mkdir -p .git/info; echo '{line}' >>.git/info/attributes\n"
# Those that do not disturb each other, so that one capsule tries them all.
GROUPS = {
    "reading": ("clean-filter", "lfs-filter", "textconv", "fsmonitor", "hooks", "nested",
                "signature", "alternate-refs", "editor", "trailer", "promisor-ext"),
    "fetching": ("process-filter", "diff-command", "hooks-path", "include", "promisor",
                 "submodule-update", "credential", "embedded-bare", "pointer-file"),
    "writing": ("clean-filter", "external-diff", "include-if", "worktree-config", "ssh-command",
                "sign-commits", "hooks"),
}  # fmt: skip


def lines(owner, name, ran=None):
    return PLANTS[name][0].replace("RECORD", owner.recorder(name, ran).replace("\\", "\\\\"))


def test_every_plant_is_in_a_group():
    assert {name for group in GROUPS.values() for name in group} == set(PLANTS)


def test_control_every_plant_runs_in_a_plain_clone(owner):
    silent = []
    for name, (_, command) in PLANTS.items():
        copy = owner.place / "control" / name
        owner.git("clone", "--quiet", "--no-hardlinks", owner.repo, copy)
        owner.run("bash", "-c", lines(owner, name), cwd=copy, check=False)
        owner.ran.unlink(missing_ok=True)
        owner.run("bash", "-c", command, cwd=copy, check=False, env={"GIT_TERMINAL_PROMPT": "0"})
        if name not in owner.traces().split():
            silent.append(name)
    assert silent == []


@as_both
@pytest.mark.parametrize("group", GROUPS)
def test_looking_runs_no_plant(owner, group):
    """F6, F7, E1: neither outside nor inside; nor does removal, with and without `--force`."""
    owner.atoll("new", "x")
    planted = "".join(lines(owner, name) for name in GROUPS[group])
    owner.inside(f"{planted}\nrm -f {owner.ran}; echo new >new.txt; true")
    owner.look(*LOOKS)
    assert owner.traces() == ""
    assert owner.traces_inside() == ""
    owner.look(*ENDINGS)
    assert owner.traces() == ""


@as_both
def test_a_plant_does_run_when_the_agent_itself_asks(owner):
    """Control of the test above: the trace would be seen inside."""
    owner.atoll("new", "x")
    owner.inside(lines(owner, "fsmonitor") + "git status >/dev/null; true")
    assert "fsmonitor" in owner.traces_inside()
    assert owner.traces() == ""


@as_both
def test_commit_runs_hooks_inside_only_and_as_a_run(owner):
    """The project's hooks are the one thing that runs: inside, ended with the command."""
    owner.atoll("new", "x")
    word = f"{owner.token}hook"
    owner.inside(
        lines(owner, "hooks") + f"printf '(setsid tail -f /dev/null {word} >/dev/null 2>&1 &)\\n' "
        ">>.git/hooks/pre-commit\n"
        "printf 'exec -a %s sleep 1000 &\\n' "
        f"{word} >>.git/hooks/pre-commit; sed -i 1s,/bin/sh,/bin/bash, .git/hooks/pre-commit\n"
        "echo new >new.txt"
    )
    owner.atoll("commit", "x", "-m", "with hooks")
    assert owner.traces() == ""
    assert "hooks" in owner.traces_inside()
    assert hostile.wait_for(lambda: not owner.with_token(word)), "a hook's child outlives it"
    owner.atoll("export", "x")
    assert owner.comes_out("new\n")


# WHERE is the host's path of EVIL, NAMES what the tree calls it.
GITLINK = r"""
git init -q /tmp/EVIL; cd /tmp/EVIL
git config core.repositoryformatversion 1; git config extensions.partialClone o
git config remote.o.url 'WHERE'; git config remote.o.promisor true
git config remote.o.uploadpack 'RECORD; false'; cd - >/dev/null
cp -r /tmp/EVIL EVIL
T=$( (for n in NAMES; do printf '160000 %s\0' "$n"; printf '\x11%.0s' $(seq 20); done
  git cat-file tree HEAD^{tree}) | git hash-object -w --literally -t tree --stdin)
C=$(git commit-tree $T -p HEAD -m x)
"""
# When HEAD becomes that commit: at once, or by a clean filter while somebody looks.
MOMENTS = {
    "now": "git update-ref HEAD $C\n",
    "while-looking": r"""
printf '#!/bin/sh\ncat\necho %s > %s/.git/%s\n' $C $PWD $(git symbolic-ref HEAD) >/tmp/f.sh
chmod +x /tmp/f.sh; git config filter.e.clean /tmp/f.sh; mkdir -p .git/info
echo 'README.md filter=e' >.git/info/attributes; touch -d '+20 sec' README.md
""",
}


@as_both
@pytest.mark.parametrize("moment", MOMENTS)
def test_links_to_repositories_lead_git_nowhere(owner, moment):
    """E1: gitlinks with odd names, while the agent knows where its own files lie on the host."""
    word = f"evil{owner.token}"
    owner.atoll("new", "x")
    owner.inside(f"mkdir -p /tmp/{word}; touch /tmp/{word}/there")
    where = owner.host_path(word)
    names = (where, "../" * 20 + str(where)[1:], word, f".git/../{word}", f"//{where}")
    script = GITLINK.replace("RECORD", owner.recorder("gitlink")).replace("EVIL", word)
    script = script.replace("NAMES", " ".join(f"'{name}'" for name in names))
    owner.inside(script.replace("WHERE", str(where)) + MOMENTS[moment])
    # Control: git at that path does run it.
    trust = ("-c", "safe.directory=*")
    owner.run("git", *trust, "-C", where, "cat-file", "-e", MISSING, check=False)
    assert owner.traces() == "gitlink\n"
    owner.ran.unlink()
    owner.look(("show", "x"), ("diff", "x"), ("export", "x"), ("rm", "x"))
    owner.look(("rm", "x", "--force"), ("recover",), ("gc",))
    assert owner.traces() == ""


@as_both
def test_a_narrowed_run_stays_narrow(owner):
    """F7: what a run with `--write` and `--network none` planted gets no more rights later."""
    owner.atoll("new", "x")
    narrow = ("--write", "docs/**", "--network", "none")
    spoil = f"echo spoilt >{owner.repo}/src/calc.py"
    script = (
        f"git config filter.e.clean '{owner.recorder('narrow')}; {spoil}; cat'\n"
        + ATTRIBUTES.format(line="*.md filter=e")
        + "printf '# Giude\\n' >docs/guide.md; touch -d '+20 sec' docs/guide.md\n"
        # A commit by plumbing, of what could not be written as a file.
        "B=$(echo evil | git hash-object -w --stdin)\n"
        "git update-index --add --cacheinfo 100644,$B,src/calc.py\n"
        "git update-index --add --cacheinfo 100644,$B,src/new.py\n"
        "git update-ref HEAD $(git commit-tree $(git write-tree) -p HEAD -m plumbing)\n"
    )
    owner.inside(script, "x", *narrow, check=False)
    # Control: in this run the file itself cannot be written.
    owner.inside("echo evil >src/calc.py", "x", *narrow, check=False)
    assert owner.inside("cat src/calc.py") == hostile.FILES["src/calc.py"]
    owner.look(("show", "x"), ("diff", "x"), ("export", "x"), ("ls",))
    assert owner.traces() == ""
    assert owner.traces_inside() == ""
    assert owner.inside("cat src/calc.py") == hostile.FILES["src/calc.py"]
    assert not owner.comes_out("evil\n")


WAYS = {
    "branch": "echo $C >.git/$R",
    "packed": "rm -f .git/$R; echo $C $R >.git/packed-refs",
    "detached": "echo $C >.git/HEAD",
    "merge": "git update-ref $R $(git commit-tree HEAD^{tree} -p HEAD -p $C -m m)",
    "reverted": "git update-ref $R $(git commit-tree HEAD^{tree} -p $C -m back)",
    "tag": "git tag evil $C; git branch evil $C; echo ref: refs/tags/evil >.git/HEAD",
}


@as_both
def test_other_ways_of_committing_outside_of_the_patterns(owner):
    """Siblings of F7: a history that holds what the run could not write."""
    made = (
        "export GIT_INDEX_FILE=/tmp/index; git read-tree HEAD; R=$(git symbolic-ref HEAD)\n"
        "B=$(echo evil | git hash-object -w --stdin)\n"
        "git update-index --add --cacheinfo 100644,$B,src/calc.py\n"
        "C=$(git commit-tree $(git write-tree) -p HEAD -m plumbing); unset GIT_INDEX_FILE\n"
    )
    mine = ("for-each-ref", "refs/tags", "refs/heads/main", "refs/heads/evil")
    before = owner.git(*mine)
    came_out = []
    for way, script in WAYS.items():
        owner.atoll("new", way)
        options = ("--write", "docs/**", "--network", "none")
        owner.inside(made + script, way, *options, check=False)
        owner.look(("export", way))
        if owner.comes_out("evil\n", f"atoll/{way}"):
            came_out.append(way)
    # Control: from a run that may write everywhere, the same history comes out.
    owner.atoll("new", "wide")
    owner.inside(made + WAYS["branch"], "wide")
    owner.look(("export", "wide"))
    assert owner.comes_out("evil\n", "atoll/wide")
    assert came_out == []
    assert owner.git(*mine) == before
