"""What a walled agent plants in its repository starts nothing on the host, whatever is done there.

The plants and their controls are those of level `clone`: `tests/integration/test_git_attacks.py`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from present import present

SOURCE = Path(__file__).parents[1] / "integration" / "test_git_attacks.py"
spec = present(importlib.util.spec_from_file_location("plants_of_git", SOURCE))
plants = importlib.util.module_from_spec(spec)
present(spec.loader).exec_module(plants)

canary = plants.canary
# Inside, the canary lies at the same path: there it may run.
BRING = "mkdir -p '{place}'; cat > '{program}'; chmod 755 '{program}'; "
# Those that go together, all in one capsule; every one of them is in a group.
GROUPS = (
    ("fsmonitor", "hooks", "external-diff", "editor-and-pager", "alias", "pack-hook"),
    ("hooks-path", "include", "textconv", "embedded-bare"),
    ("include-if", "config-worktree", "clean-filter", "nested"),
    ("process-filter",),
    ("merge-driver", "pointer-swap"),
)
VERBS = (
    ("show", "x"),
    ("diff", "x"),
    ("diff", "x", "--stat"),
    ("export", "x"),
    ("snapshot", "x", "-m", "point"),
    ("fork", "x", "copy"),
    ("rm", "x", "--force"),
)


def test_every_plant_is_tried():
    assert sorted(name for group in GROUPS for name in group) == sorted(plants.PLANTS)


@pytest.mark.parametrize("group", GROUPS, ids="+".join)
def test_plants_never_run_on_the_host(group, project, capsule, repo, canary, git):
    before = git("for-each-ref", cwd=repo)
    bring = BRING.format(place=canary.parent, program=canary)
    planted = "; ".join(plants.PLANTS[name] for name in group)
    script = f"{bring} CANARY='{canary}'; {planted}; {plants.ACT}"
    capsule.run(["sh", "-c", script], stdin=canary.read_bytes())
    plants.use_from_outside(project, capsule)
    git("fsck", "--strict", cwd=repo)
    capsule.remove(force=True)
    # On the host nobody has run it: not by us, not by a process in another namespace.
    assert plants.namespaces(canary) == set()
    now = git("for-each-ref", cwd=repo)
    mine = [line for line in before.splitlines() if "refs/atoll/" not in line]
    assert [line for line in mine if line not in now] == []
    assert git("status", "--porcelain", cwd=repo) == ""
    for one in project.capsules():
        one.remove(force=True)


def test_verbs_start_nothing_on_the_host(project, capsule, repo, canary, atoll):
    """All plants that go together, and then the commands that a person types."""
    bring = BRING.format(place=canary.parent, program=canary)
    planted = "; ".join(plants.PLANTS[name] for name in GROUPS[0])
    script = f"{bring} CANARY='{canary}'; {planted}; {plants.ACT}"
    capsule.run(["sh", "-c", script], stdin=canary.read_bytes())
    for words in VERBS:
        atoll(*words, cwd=repo, check=False)
    assert plants.namespaces(canary) == set()
    for one in project.capsules():
        one.remove(force=True)


def test_the_plant_runs_inside(capsule, canary):
    """Control: the capsule's own git believes it, so it is a real plant."""
    bring = BRING.format(place=canary.parent, program=canary)
    planted = f"{plants.PLANTS['fsmonitor']}; git status; cat {canary.parent}/seen"
    script = f"{bring} CANARY='{canary}'; {planted}"
    done = capsule.run(["sh", "-c", script], stdin=canary.read_bytes())
    assert b"mnt:[" in done.stdout
    assert os.readlink("/proc/self/ns/mnt").encode() not in done.stdout


def test_the_owners_branches_stay(project, capsule, repo, git):
    """G18, G20: only the capsule's own branch moves."""
    head = git("rev-parse", "main", cwd=repo)
    git("tag", "v1", cwd=repo)
    script = (
        "git commit --allow-empty -qm evil; git update-ref refs/heads/main HEAD; git tag -f v1; "
        "git update-ref refs/heads/atoll/other HEAD; git worktree prune; git gc -q --prune=now"
    )
    capsule.run(["sh", "-c", script])
    assert git("rev-parse", "main", cwd=repo) == head
    assert git("rev-parse", "v1", cwd=repo) == head
    names = {line.split()[2] for line in git("for-each-ref", cwd=repo).splitlines()}
    assert "refs/heads/atoll/other" not in names
    git("fsck", "--full", "--strict", cwd=repo)
