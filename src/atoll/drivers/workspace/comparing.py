"""What differs between two views of a capsule, each of which has objects that the other lacks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers.commit import quoted_path
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.workspace.private import PrivateSite
from atoll.drivers.workspace.recovery import require_trees
from atoll.host import git
from atoll.model.plan import Enclosure, WorkspacePlan

Seen = tuple[WorkspacePlan, Enclosure]
"""A state of a workspace and the view that shows it."""


def compare(before: Seen, after: Seen, *, place: str, stat: bool) -> bytes:
    """A patch from one to the other. `place` is a directory that both views can write to."""
    trees = [_tree(plan, inside, place) for plan, inside in (before, after)]
    plan, inside = after
    flags = ["--no-color", "--no-ext-diff", "--no-textconv", *(["--stat"] if stat else [])]
    env = _objects(plan, place, (*_layers(before[0]), *_layers(plan)))
    return git.git("diff", *flags, *trees, "--", cwd=plan.path, within=inside, env=env).stdout


def _layers(plan: WorkspacePlan) -> Sequence[str]:
    return (*plan.layers, plan.upper)


def _tree(plan: WorkspacePlan, inside: Enclosure, place: str) -> str:
    """What the view shows, as a tree among the objects in `place`."""
    env = _objects(plan, place, _layers(plan))
    return require_trees(PrivateSite(plan, inside.adding(env), lambda _: None)).everything


def _objects(plan: WorkspacePlan, place: str, layers: Sequence[str]) -> dict[str, str]:
    """Has git write to `place` and read what any of the layers holds."""
    Path(place, "objects").mkdir(exist_ok=True)
    pool = Pool(plan.pool)
    stores = [str(pool.tree(layer) / WORKSPACE / ".git" / "objects") for layer in layers]
    existing = [store for store in dict.fromkeys(stores) if os.path.isdir(store)]
    return {
        "GIT_OBJECT_DIRECTORY": f"{place}/objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(
            quoted_path(store) for store in [str(pool.objects), *existing]
        ),
    }
