"""What a workspace changes, as git: patches, and commits that the host makes of its files."""

from __future__ import annotations

import time

from atoll.drivers.contracts import Author, Committed
from atoll.drivers.workspace import recovery
from atoll.drivers.workspace.recovery import Site
from atoll.drivers.workspace.survey import Workspace, survey
from atoll.host.intake import commits, comparison
from atoll.host.intake.store import Store
from atoll.model.errors import StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Patch
from atoll.model.untrusted import ObjectId

_PATCH_BYTES = 512 << 20
_REST = b"atoll: what was not committed\n"
_NO_REPOSITORY = "the repository in the workspace is not the one that it was made with"
_WAY_OUT = "atoll rm --force keeps its files as they are"


def diff(site: Site, *, base: str, stat: bool) -> Patch:
    """From `base` to the files as they are. Also says what commits change and the files do not."""
    with site.opened() as (workspace, store):
        seen = survey(store, workspace, site.plan.base_commit)
        left_out = seen.left_out()
        tree = recovery.write_survey(store, workspace, seen)
        before = comparison.tree_of(store, base)
        shown = comparison.difference(store, before, tree)
        text = commits.diff(
            store, before, tree, stat=stat, limit_bytes=_PATCH_BYTES, paths=list(shown)
        )
        try:
            taken = site.take(workspace, everything=False)
        except StateError as error:
            return Patch(text, left_out=left_out, refused=error.message)
        if taken is None:
            return Patch(text, left_out=left_out, refused=_NO_REPOSITORY)
        tips = dict.fromkeys([taken.branch, *site.committed()])
        concealed = {
            path
            for tip in tips
            if tip is not None
            for path in comparison.difference(store, base, tip)
            if path not in shown
        }
        names = tuple(path.shown() for path in sorted(concealed))
        return Patch(text, concealed=names, left_out=left_out)


def diff_between(
    plan: WorkspacePlan,
    store: Store,
    then: Workspace,
    now: Workspace,
    *,
    stat: bool,
) -> Patch:
    """From one state of a workspace to another."""
    before, after = (_files(plan, workspace, store) for workspace in (then, now))
    return Patch(commits.diff(store, before, after, stat=stat, limit_bytes=_PATCH_BYTES))


def _files(plan: WorkspacePlan, workspace: Workspace, store: Store) -> ObjectId:
    seen = survey(store, workspace, plan.base_commit)
    return recovery.write_survey(store, workspace, seen)


def bring(site: Site, *, everything: bool) -> str | None:
    """Takes the commits of the branch over; with `everything` the rest, too, as one on top.

    Returns where the branch stands then; None when there is none. Raises StateError.
    """
    with site.opened() as (workspace, store):
        taken = site.take(workspace, everything=False)
        if taken is None:
            raise StateError(_NO_REPOSITORY, hint=_WAY_OUT)
        if not everything:
            return taken.branch
        author = Author(recovery.NAME, recovery.ADDRESS)
        tree = _files(site.plan, workspace, store)
        return _commit_files(site, store, taken.branch, tree, _REST, author) or taken.branch


def commit(site: Site, message: str, author: Author) -> Committed:
    """Commits all files on the capsule's branch. The objects are in the owner's repository; the
    capsule has to be given them. Raises StateError when HEAD is elsewhere or nothing has changed.
    """
    branch = site.plan.branch
    with site.opened() as (workspace, store):
        taken = site.take(workspace, everything=False)
        if taken is None:
            raise StateError(_NO_REPOSITORY, hint=_WAY_OUT)
        if taken.head_ref != f"refs/heads/{branch}":
            raise StateError(f"the workspace is not on its branch `{branch}`")
        tree = _files(site.plan, workspace, store)
        text = message.encode(errors="surrogateescape").rstrip(b"\n") + b"\n"
        made = _commit_files(site, store, taken.head, tree, text, author)
        if made is None:
            raise StateError("there is nothing to commit")
        known = [taken.head] if taken.head is not None else []
        return Committed(made, taken.head, comparison.pack(store, made, known=known))


def _commit_files(
    site: Site, store: Store, parent: str | None, tree: str, text: bytes, author: Author
) -> str | None:
    """A commit of a tree in the owner's repository; None when its parent has that very tree."""
    if parent is not None and comparison.tree_of(store, parent) == tree:
        return None
    parents = [] if parent is None else [parent]
    made = commits.commit(store, tree, parents, text, author, author, int(time.time()))
    commits.publish(store, site.plan.repository, [made], known=parents)
    return made
