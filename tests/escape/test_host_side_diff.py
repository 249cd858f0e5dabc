"""`atoll diff` shows what an exported branch contains, and a capsule reads no other's objects.

An agent's index, excludes, settings and replaced objects have no say in what is shown.
"""

from __future__ import annotations

import hostile
from git_plants import PLANTS
from hostile import as_both

owner = hostile.owner
HIDE = "printf 'evil = 1\\n' >src/calc.py"
# Ways to change `src/calc.py`, or to add `evil.py`, without git's `status` and `diff` telling so.
HIDDEN = {
    "assume-unchanged": "git update-index --assume-unchanged src/calc.py; " + HIDE,
    "skip-worktree": "git update-index --skip-worktree src/calc.py; " + HIDE,
    "exclude": "mkdir -p .git/info; echo 'evil*' >.git/info/exclude; echo 1 >evil.py; "
    "printf 'evil = 1\\n' >evil-calc.py",
    "excludes-file": "echo 'evil*' >~/ex; git config core.excludesFile ~/ex; echo 1 >evil.py",
    "untracked-off": "git config status.showUntrackedFiles no; echo 1 >evil.py",
    "same-stat": "git config core.trustctime false; git config core.checkStat minimal; "
    "git config core.filemode false; touch -r src/calc.py /tmp/t; printf 'evil=1\\n\\n' "
    "| head -c 8 >src/calc.py; touch -r /tmp/t src/calc.py; echo 1 >>evil.py",
    "sparse": "git sparse-checkout set --no-cone docs 2>/dev/null; mkdir -p src; " + HIDE,
    "identity-filter": "git config filter.h.clean 'git cat-file blob HEAD:src/calc.py'; "
    "mkdir -p .git/info; echo 'src/calc.py filter=h' >.git/info/attributes; " + HIDE,
    "attributes": "echo '*.py -diff -text working-tree-encoding=UTF-16 ident' >.gitattributes; "
    + HIDE,
    "fsmonitor": "git config core.fsmonitor true; git update-index --fsmonitor-valid src/calc.py; "
    + HIDE,
    "worktree": "mkdir -p /tmp/w; cp -r . /tmp/w; git config core.worktree /tmp/w; " + HIDE,
    "nested": "git init -q src; " + HIDE,
    "no-repository": "rm -rf .git; " + HIDE,
    "another-repository": "mv .git /tmp/g; git init -q .; git add -A; "
    "git -c user.name=a -c user.email=a commit -qm x; " + HIDE,
    "replace": "printf 'evil = 1\\n' >src/calc.py; git commit -qam x; "
    "git replace HEAD:src/calc.py HEAD~:src/calc.py; git replace HEAD HEAD~",
    "graft": "printf 'evil = 1\\n' >src/calc.py; git commit -qam x; "
    "git rev-parse HEAD >.git/shallow; mkdir -p .git/info; git rev-parse HEAD >.git/info/grafts",
    "moved-base": "printf 'evil = 1\\n' >src/calc.py; git commit -qam x; "
    "git update-ref refs/heads/main HEAD; git tag -f base",
    "order-file": "echo docs >/tmp/o; git config diff.orderFile /tmp/o; "
    "git config diff.ignoreSubmodules all; git config diff.relative docs; " + HIDE,
}  # fmt: skip
# Commits whose content the files do not have any more.
REVERTED = {
    "reverted-file": "printf 'evil = 1\\n' >src/calc.py; git commit -qam x; "
    "git show HEAD~:src/calc.py >src/calc.py; git update-index --assume-unchanged src/calc.py",
    "plumbing": "B=$(printf 'evil = 1\\n' | git hash-object -w --stdin); "
    "GIT_INDEX_FILE=/tmp/i git read-tree HEAD; GIT_INDEX_FILE=/tmp/i git update-index --cacheinfo "
    "100644,$B,src/calc.py; T=$(GIT_INDEX_FILE=/tmp/i git write-tree); "
    "git update-ref HEAD $(git commit-tree $T -p HEAD -m x)",
}


@as_both
def test_diff_shows_every_hidden_change(owner):
    """M5: in one capsule per way, all made at once."""
    silent = []
    owner.atoll("new", "h", "-n", str(len(HIDDEN)))
    for number, (way, script) in enumerate(HIDDEN.items(), start=1):
        name = f"h-{number}"
        owner.inside(script + "; true", name)
        shown = owner.atoll("diff", name, check=False)
        if shown.returncode or not ("evil" in shown.stdout or "src/calc.py" in shown.stdout):
            silent.append((way, shown.returncode, shown.stderr))
    assert silent == []


def test_control_git_hides_these_changes(owner):
    """In a plain clone, `git status` and `git diff` say nothing of them."""
    blind = ("assume-unchanged", "skip-worktree", "exclude", "excludes-file", "untracked-off")
    for way in blind:
        copy = owner.place / f"control-{way}"
        owner.git("clone", "--quiet", owner.repo, copy)
        owner.run("bash", "-c", HIDDEN[way], cwd=copy)
        said = owner.git("status", "--porcelain", cwd=copy) + owner.git("diff", cwd=copy)
        assert said == "", way


@as_both
def test_diff_tells_of_commits_that_the_files_do_not_show(owner):
    """M5: what comes out with the branch is shown, or announced on standard error."""
    owner.atoll("new", "r", "-n", str(len(REVERTED)))
    for number, (way, script) in enumerate(REVERTED.items(), start=1):
        name = f"r-{number}"
        owner.inside(script, name)
        owner.atoll("export", name, check=False)
        shown = owner.atoll("diff", name)
        if owner.comes_out("evil = 1\n", f"atoll/{name}"):
            assert "src/calc.py" in shown.stdout or shown.stderr.strip(), way


@as_both
def test_diff_and_branch_agree(owner):
    """M5: every path that the exported branch changes is in `diff`."""
    owner.atoll("new", "x")
    owner.inside(
        "mkdir -p .git/info; printf 'evil*\\n*.md\\n' >.git/info/exclude; echo 1 >evil.py\n"
        "git update-index --assume-unchanged README.md; echo x >>README.md; chmod 755 src/more.py\n"
        "git config core.fileMode false; ln -s /etc/passwd link; git config core.symlinks false\n"
        "git update-index --skip-worktree src/calc.py; echo 'evil = 1' >src/calc.py\n"
        "rm docs/guide.md; git update-index --assume-unchanged docs/guide.md"
    )
    shown = owner.atoll("diff", "x").stdout
    owner.atoll("export", "x", "--all")
    changed = owner.git("diff", "--name-only", "--no-renames", "main", "atoll/x").split()
    assert set(changed) >= {"evil.py", "README.md", "src/calc.py", "docs/guide.md", "src/more.py"}
    assert [path for path in changed if path not in shown] == []
    assert "root:x:0" not in shown


@as_both
def test_a_nested_repository_without_a_commit_hides_nothing(owner):
    """F12: `diff` works, and names what is in there."""
    owner.atoll("new", "x")
    owner.inside("git init -q sub; echo evil >sub/evil.py; echo more >>README.md")
    shown = owner.atoll("diff", "x")
    assert "README.md" in shown.stdout
    assert "sub" in shown.stdout + shown.stderr


@as_both
def test_objects_of_others_are_not_readable(owner):
    """M1: stashes, other branches, other capsules' commits and recovery points."""
    owner.atoll("new", "y")
    owner.inside("echo 'secret of y' >y.txt; git add y.txt; git commit -qm y", "y")
    owner.atoll("export", "y")
    owner.atoll("new", "gone")
    owner.inside("echo 'secret of gone' >gone.txt", "gone")
    owner.atoll("rm", "gone", "--force")
    owner.run("sh", "-ec", "git checkout -qb private; echo 'secret branch' >p.txt; git add p.txt; "
              "git commit -qm private; git checkout -q main; echo 'secret stash' >>README.md; "
              "git stash -q; echo 'secret lost' | git hash-object -w --stdin")  # fmt: skip
    secrets = ("secret of y\n", "secret of gone\n", "secret branch\n", "secret lost\n",
               "# Sample\nsecret stash\n")  # fmt: skip
    blobs = [owner.run("git", "hash-object", "--stdin", input=text).stdout.strip()
             for text in secrets]  # fmt: skip
    refs = owner.git("for-each-ref", "--format=%(objectname)").split()
    base = owner.git("rev-parse", "main").strip()
    ids = [*blobs, *(one for one in refs if one != base)]
    # Control: the owner reads them all.
    for one in ids:
        owner.git("cat-file", "-e", one)
    owner.atoll("new", "x")
    # One that is made while the capsule is there, and with the collected store packed.
    owner.inside("echo 'secret later' >l.txt; git add l.txt; git commit -qm later", "y")
    owner.atoll("export", "y")
    later = owner.run("git", "hash-object", "--stdin", input="secret later\n").stdout.strip()
    owner.git("repack", "-qad")
    seen = owner.inside(
        f"for i in {' '.join(ids)} {later}; do git cat-file -p $i; done 2>/dev/null\n"
        "git cat-file --batch-all-objects --batch-check --unordered | cut -d' ' -f1"
    )
    assert "secret" not in seen
    assert [one for one in [*ids, later] if one in seen] == []
    history = owner.inside(f"git cat-file -p {base}; git cat-file -p {base}:README.md; git log")
    assert "# Sample" in history
    # Nor by naming them in a way that makes the host fetch or pack them.
    owner.inside(
        f"printf '%s\\n' {refs[-1]} >.git/refs/heads/other; echo {blobs[0]} >.git/refs/tags/b\n"
        f"printf '100644 blob {blobs[0]}\\tstolen\\n' | git mktree --missing >/tmp/t\n"
        "git update-ref HEAD $(git commit-tree $(cat /tmp/t) -p HEAD -m steal) || true"
    )
    owner.look(("export", "x"), ("snapshot", "x"), ("fork", "x", "f"))
    for name in ("x", "f"):
        script = "git cat-file -p HEAD:stolen; git show HEAD; true"
        assert "secret" not in owner.inside(script, name, check=False)
    assert not owner.comes_out("secret of y\n")


@as_both
def test_commit_keeps_the_hidden_changes_too(owner):
    """`atoll commit` takes all that is there, whatever the agent's index says."""
    owner.atoll("new", "x")
    plant = PLANTS["hooks"][0].replace("RECORD", owner.recorder("hooks"))
    owner.inside(HIDDEN["assume-unchanged"] + "; " + HIDDEN["exclude"] + "\n" + plant)
    owner.atoll("commit", "x", "-m", "all")
    owner.atoll("export", "x")
    assert owner.traces() == ""
    changed = owner.git("diff", "--name-only", "main", "atoll/x").split()
    assert set(changed) >= {"src/calc.py", "evil.py"}
