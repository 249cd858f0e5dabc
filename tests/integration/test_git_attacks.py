"""What an agent plants in its capsule's repository is never run or trusted by git on the host.

Every plant has its control: the same plant in an ordinary repository does run when git is used
there. A canary says in which mount namespace it was run; the host's must never be among them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from atoll.engine.projects import open_project
from atoll.model.errors import AtollError, StateError

CANARY = """#!/bin/sh
readlink /proc/self/ns/mnt >> "{seen}"
cat > /dev/null 2>&1 < /dev/null
exit 0
"""

# name → what the agent does in its workspace; $CANARY is the program to be run.
PLANTS = {
    "fsmonitor": 'git config core.fsmonitor "$CANARY"',
    "hooks": "for h in pre-commit post-commit post-checkout post-merge reference-transaction "
    "post-index-change pre-push pre-auto-gc; do "
    'mkdir -p .git/hooks; cp "$CANARY" .git/hooks/$h; done',
    "hooks-path": "mkdir evil; for h in pre-commit reference-transaction post-index-change; do "
    'cp "$CANARY" evil/$h; done; git config core.hooksPath evil',
    "include": 'printf "[core]\\n\\tfsmonitor = $CANARY\\n" > evil.cfg; '
    "git config include.path ../evil.cfg",
    "include-if": 'printf "[core]\\n\\tfsmonitor = $CANARY\\n" > evil.cfg; '
    'git config "includeIf.gitdir:/**.path" "$PWD/evil.cfg"',
    "config-worktree": "git config extensions.worktreeConfig true; "
    'git config --worktree core.fsmonitor "$CANARY"',
    "textconv": 'git config diff.evil.textconv "$CANARY"; echo "*.txt diff=evil" > .gitattributes',
    "external-diff": 'git config diff.external "$CANARY"',
    "clean-filter": 'git config filter.evil.clean "$CANARY"; '
    'echo "*.txt filter=evil" > .gitattributes',
    "process-filter": 'git config filter.evil.process "$CANARY"; '
    'echo "*.txt filter=evil" > .gitattributes',
    "editor-and-pager": 'git config core.editor "$CANARY"; git config core.pager "$CANARY"; '
    'git config core.sshCommand "$CANARY"; git config gpg.program "$CANARY"; '
    'git config commit.gpgSign true; git config credential.helper "!$CANARY"',
    "alias": 'git config alias.rev-list "!$CANARY"; git config alias.pack-objects "!$CANARY"',
    "pack-hook": 'git config uploadpack.packObjectsHook "$CANARY"; '
    "git config transfer.advertiseSID true",
    "merge-driver": 'git config merge.evil.driver "$CANARY"; echo "* merge=evil" > .gitattributes',
    "embedded-bare": "git init -q --bare inner; "
    'git --git-dir=inner config core.fsmonitor "$CANARY"',
    "nested": 'git init -q nested; git -C nested config core.fsmonitor "$CANARY"; '
    'cp "$CANARY" nested/.git/hooks/pre-commit',
    "pointer-swap": 'mv .git .moved; mkdir .git.d; echo "gitdir: .moved" > .git; '
    'git config core.fsmonitor "$CANARY"',
}
ACT = "echo changed >> README.md; echo new > fresh.txt; git add -A 2>/dev/null; git commit -qm evil"


@pytest.fixture
def canary(tmp_path):
    place = tmp_path / "canary"
    place.mkdir()
    program = place / "program"
    program.write_text(CANARY.format(seen=place / "seen"))
    program.chmod(0o755)
    return program


def namespaces(canary: Path) -> set[str]:
    seen = canary.parent / "seen"
    return set(seen.read_text().split()) if seen.exists() else set()


@pytest.fixture
def project(repo, atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    return open_project(repo, background=False, warn=lambda _: None)


def use_from_outside(project, capsule) -> None:
    """Everything that a person does with a capsule's work from the host."""
    for act in (
        capsule.diff,
        lambda: capsule.diff(stat=True),
        capsule.work,
        capsule.export,
        lambda: capsule.export(everything=True),
        lambda: capsule.commit("from outside", verify=False),
        lambda: capsule.snapshot("point"),
        lambda: capsule.diff(since=capsule.require_snapshot()),
        lambda: project.fork(capsule, "copy"),
        capsule.rollback,
    ):
        try:
            act()
        except AtollError:
            continue


@pytest.mark.parametrize("plant", PLANTS)
def test_plant_never_runs_on_the_host(plant, project, repo, canary, git):
    capsule = project.new("x")
    before = git("for-each-ref", cwd=repo)
    script = f"CANARY='{canary}'; {PLANTS[plant]}; {ACT}"
    capsule.run(["sh", "-c", script])
    use_from_outside(project, capsule)
    git("fsck", "--strict", cwd=repo)
    point = capsule.remove(force=True)
    if point is not None:
        project.recover(point, "back").remove(force=True)
    assert os.readlink("/proc/self/ns/mnt") not in namespaces(canary)
    mine = [line for line in before.splitlines() if "refs/atoll/" not in line]
    now = git("for-each-ref", cwd=repo)
    assert [line for line in mine if line not in now] == []
    assert git("status", "--porcelain", cwd=repo) == ""


CONTROLS = {
    "fsmonitor": "git status",
    "hooks": "git commit --allow-empty -qm x",
    "hooks-path": "git commit --allow-empty -qm x",
    "include": "git status",
    "include-if": "git status",
    "config-worktree": "git status",
    "textconv": "echo 1 > a.txt; git add -A; git commit -qm a; echo 2 > a.txt; git diff",
    "external-diff": "echo more >> README.md; git diff",
    "clean-filter": "echo 1 > a.txt; git add -A",
    "process-filter": "echo 1 > a.txt; git add -A",
    "editor-and-pager": "git commit --allow-empty -m x",
    "pack-hook": "git clone -q --no-local . ../clone",
    "embedded-bare": "git -C inner --work-tree=. status",
    "nested": "git -C nested status",
    "pointer-swap": "git status",
}


@pytest.mark.parametrize("plant", CONTROLS)
def test_control_the_plant_runs_where_git_trusts_it(plant, repo, canary, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(repo, copy, symlinks=True)
    env = {**os.environ, "CANARY": str(canary), "HOME": str(tmp_path)}
    planted = PLANTS[plant]
    if plant == "pack-hook":
        # Git takes this one only from the settings of the user or the machine.
        env["GIT_CONFIG_GLOBAL"] = str(tmp_path / "global")
        planted = planted.replace("git config", "git config --global")
    script = f"{planted}; {CONTROLS[plant]}"
    subprocess.run(["sh", "-c", script], cwd=copy, env=env, check=False, capture_output=True)
    assert os.readlink("/proc/self/ns/mnt") in namespaces(canary)


def test_only_its_own_branch_moves(project, repo, git):
    """G18: refs of the owner's name inside are the capsule's own."""
    capsule = project.new("x")
    head = git("rev-parse", "main", cwd=repo)
    git("tag", "v1", cwd=repo)
    script = (
        "git commit --allow-empty -qm evil; git update-ref refs/heads/main HEAD; "
        "git tag -f v1 HEAD; git update-ref refs/heads/atoll/other HEAD; "
        "git update-ref refs/atoll/pins/gdeadbeef HEAD; git branch stolen"
    )
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    assert git("rev-parse", "main", cwd=repo) == head
    assert git("rev-parse", "v1", cwd=repo) == head
    names = {line.split()[2] for line in git("for-each-ref", cwd=repo).splitlines()}
    assert {"refs/heads/atoll/other", "refs/heads/stolen"} & names == set()
    assert "refs/heads/atoll/x" in names


@pytest.mark.parametrize(
    "damage",
    [
        "rm -rf .git/objects",
        "git gc -q --prune=now --aggressive",
        "git repack -adq; git prune --expire=now",
        "find .git -type f -exec truncate -s 0 {} +",
        "rm -rf .git",
        "rm -rf .git; git init -q; git commit --allow-empty -qm unrelated",
        "git worktree prune; git reflog expire --expire=now --all",
    ],
)
def test_damage_inside_stays_inside(damage, project, repo, git):
    """G19, G20."""
    capsule = project.new("x")
    other = project.new("y")
    capsule.run(["sh", "-c", f"echo w > w.txt; git add -A; git commit -qm w; {damage}"])
    git("fsck", "--full", "--strict", cwd=repo)
    assert other.run(["git", "fsck", "--full"]).exit_code == 0
    assert other.run(["git", "status", "--porcelain"]).stdout == b""
    capsule.remove(force=True)
    git("fsck", "--full", "--strict", cwd=repo)


def test_gc_of_the_owner_does_not_break_a_capsule(project, repo, git):
    git("checkout", "-q", "-b", "doomed", cwd=repo)
    (repo / "doomed.txt").write_text("doomed\n")
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "doomed", cwd=repo)
    git("tag", "-a", "-m", "annotated", "marked", cwd=repo)
    capsule = project.new("x")
    git("checkout", "-q", "main", cwd=repo)
    git("branch", "-D", "doomed", cwd=repo)
    git("tag", "-d", "marked", cwd=repo)
    git("reflog", "expire", "--expire=now", "--all", cwd=repo)
    git("gc", "-q", "--prune=now", cwd=repo)
    assert capsule.run(["git", "fsck", "--full"]).exit_code == 0
    assert capsule.run(["git", "describe", "--exact-match"]).stdout == b"marked\n"
    assert capsule.run(["git", "log", "--format=%s", "-1"]).stdout == b"doomed\n"


def test_a_linked_ref_is_not_followed(project, repo, tmp_path):
    """The host reads one ref from the upper layer itself: never through a link."""
    secret = tmp_path / "secret"
    secret.write_text("f" * 40 + "\n")
    capsule = project.new("x")
    script = (
        f"rm .git/refs/heads/atoll/x; ln -s {secret} .git/refs/heads/atoll/x; "
        "rm -rf .git/refs/heads/atoll; ln -s /etc .git/refs/heads/atoll"
    )
    capsule.run(["sh", "-c", script])
    with pytest.raises((StateError, AtollError)):
        capsule.export()


def test_identity_inside_cannot_forge_what_the_host_records(project, repo, git):
    """G23: a recovery point is Atoll's own word; the commits under it say what they say."""
    capsule = project.new("x")
    script = (
        "git config user.name Owner; git config user.email owner@example.org; "
        "echo f > f; git add f; git commit -qm forged"
    )
    capsule.run(["sh", "-c", script])
    point = capsule.remove(force=True)
    assert point is not None
    text = git("log", "-1", "--format=%cn%n%B", point.ref, cwd=repo)
    assert text.startswith("Atoll\n")
    assert "recovery point x/" in text
    assert point.capsule == "x"
