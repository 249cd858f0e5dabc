"""The work in a capsule, as git: asked inside the capsule, with what the capsule may know."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.layers.pool import Pool
from atoll.drivers.layers.workbench import holding
from atoll.engine import exports
from atoll.engine.capsules import Capsule
from atoll.engine.leases import workspace_plan
from atoll.engine.views import furnished
from atoll.host import git
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.plan import Enclosure
from atoll.model.state import Snapshot


def diff(capsule: Capsule, *, stat: bool = False) -> bytes:
    """Everything that differs from where the capsule started: committed or not, tracked or not."""
    record, inside = capsule.record, capsule.enclosure()
    flags = ["--no-color", *(["--stat"] if stat else [])]
    with git.copied_index(cwd=record.workspace, within=inside) as index:
        env = {"GIT_INDEX_FILE": index}
        git.git(
            "add",
            "--all",
            "--intent-to-add",
            "--",
            ".",
            cwd=record.workspace,
            within=inside,
            env=env,
        )
        answer = git.git(
            "diff", *flags, "--no-ext-diff", "--no-textconv", record.base_commit, "--",
            cwd=record.workspace, within=inside, env=env,
        )  # fmt: skip
    return answer.stdout


def diff_since(capsule: Capsule, snapshot: Snapshot, *, stat: bool = False) -> bytes:
    """What has changed since a point, by way of a second view that shows the point."""
    session, record = capsule.session, capsule.record
    plan = workspace_plan(session, record)
    driver = registry.layered_driver(plan.driver)
    pool = Pool(plan.pool)
    past = driver.on(plan, snapshot.layers)
    now = capsule.enclosure()
    with tempfile.TemporaryDirectory(prefix=".diff-", dir=record.directory) as place:
        with pool.turn(shared=True):
            driver.prepare(past)
        try:
            view = furnished(session, record, driver.view(past))
            watched = Path(place, "held")
            watched.mkdir()
            with holding(session.nursery, view, watched) as held:
                then = now._replace(holder=held.holder)
                return driver.compare((past, then), (plan, now), place=place, stat=stat)
        finally:
            driver.discard(past, home=session.home)


def commit(capsule: Capsule, message: str, *, verify: bool = True) -> str:
    """Commits everything in the workspace on its branch; the project's own hooks run inside."""
    record, inside = capsule.record, capsule.enclosure()
    if record.branch is None:
        raise StateError(
            f"`{capsule.name}` is the checkout itself and has no branch of its own",
            hint="git commit",
        )
    here = git.git(
        "symbolic-ref", "--quiet", "HEAD", cwd=record.workspace, within=inside, allowed=(0, 1)
    ).text.strip()
    if here != f"refs/heads/{record.branch}":
        raise StateError(
            f"the workspace of `{capsule.name}` is not on its branch `{record.branch}`",
            hint=f"atoll run {capsule.name} -- git switch {record.branch}",
        )
    _require_identity(capsule, inside)
    git.git("add", "--all", "--", ".", cwd=record.workspace, within=inside)
    if not git.git(
        "diff", "--cached", "--quiet", cwd=record.workspace, within=inside, allowed=(0, 1)
    ).code:
        raise StateError(
            f"`{capsule.name}` has nothing to commit", hint=f"atoll diff {capsule.name}"
        )
    flags = [] if verify else ["--no-verify"]
    git.git(
        "commit", "--quiet", *flags, "--file=-",
        cwd=record.workspace, within=inside, stdin=os.fsencode(message), safe=False,
    )  # fmt: skip
    exports.export_after_run(capsule.session, record)
    return git.git("rev-parse", "HEAD", cwd=record.workspace, within=inside).text.strip()


def _require_identity(capsule: Capsule, inside: Enclosure) -> None:
    asked = git.git(
        "var", "GIT_COMMITTER_IDENT",
        cwd=capsule.record.workspace, within=inside, allowed=(0, 1, 128),
    )  # fmt: skip
    if asked.code != 0:
        inner = f"atoll run {capsule.name} -- git config --global"
        raise PrerequisiteError(
            "git does not know who commits",
            hint=f'{inner} user.name "NAME" && {inner} user.email "ADDRESS"',
        )
