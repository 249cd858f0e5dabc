"""The short form of `verify`, for `doctor`: what a new capsule would see of this machine.

The temporary project is in the temporary directory, since nothing in an Atoll home can be a
project; its Atoll home is below the real one, so that visible paths (toolchains, PATH, the owner's
HOME) are chosen as for any capsule of the owner.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.engine.projects import CapsuleSpec, Project, open_project
from atoll.engine.verify import attack
from atoll.engine.verify.wall_test import Wall, WallFinding
from atoll.host import files, git

IDS = frozenset({
    "F01", "F01b", "F02", "F02b", "F03", "F03b", "F03c", "F11", "F20", "S09", "Z06", "Z06b", "Z06c",
    "S01", "S01b", "S02", "S02b", "S04", "P01", "P05", "G01", "G02", "G21",
})  # fmt: skip
"""The attempts on what is visible; none of them waits for anything."""


def visible() -> Wall:
    attempts = (attempt for wall in attack.WALLS for attempt in wall.attempts)
    return Wall("visible", tuple(attempt for attempt in attempts if attempt.id in IDS))


def check_visible(home: Path) -> list[WallFinding]:
    """Makes the attempts of the short form in a new capsule of level `sandbox`.

    Raises what making a capsule, or starting a run in it, raises.
    """
    with _throw_away_project(home) as project:
        plan = project.plan("doctor", CapsuleSpec(level="sandbox", network="none"))
        capsule = project.make([plan])[0]
        try:
            report = attack.verify(
                project, capsule, on_progress=lambda _: None, walls=(visible(),), homes=(home,)
            )
        finally:
            capsule.remove(force=True)
    return list(report.findings)


@contextmanager
def _throw_away_project(home: Path) -> Iterator[Project]:
    place = Path(tempfile.mkdtemp(prefix="doctor-", dir=home))
    checkout = Path(tempfile.mkdtemp(prefix="atoll-doctor-"))
    identity = {
        f"GIT_{who}_{what}": "atoll"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    try:
        root = str(checkout / "project")
        git.git("init", "--quiet", root, cwd=str(checkout))
        git.git("commit", "--quiet", "--allow-empty", "-m", "first", cwd=root, env=identity)
        project = open_project(root, home=place / "home", background=False, warn=lambda _: None)
        try:
            yield project
        finally:
            project.session.store.close()
    finally:
        files.remove_tree(place, within=home)
        files.remove_tree(checkout, within=checkout.parent)
