"""The changes of a workspace as patches, and as commits that the host creates from its files."""

from __future__ import annotations

import time

from atoll.drivers.contracts import Author, CommitResult, ExportedCommits
from atoll.drivers.workspace import recovery_save
from atoll.drivers.workspace.file_status import GIT, FileStatus, WorkspaceFiles, survey
from atoll.drivers.workspace.unique_work import ImportedRefs, Site, staged_paths
from atoll.host.intake import commits, comparison
from atoll.host.intake.store import IntakeRepository
from atoll.model.errors import DriverError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Patch
from atoll.model.untrusted import ObjectId

_PATCH_BYTES = 512 << 20
_CONFIG_BYTES = 1 << 20
_REST = b"atoll: uncommitted changes\n"
_NO_REPOSITORY = "the repository in the workspace has been replaced"
_HINT = "atoll rm --force saves its files as they are"


def diff(site: Site, *, base: str, stat: bool) -> Patch:
    """From `base` to the current files. Also reports paths that only commits change."""
    with site.opened() as (workspace, store):
        taken, refused = _taken(site, workspace)
        head = None if taken is None else taken.head
        staged = staged_paths(site, workspace)
        seen = survey(store, workspace, site.plan.base_commit, also=head, staged=staged)
        left_out = (*seen.nested(), *seen.unstorable())
        tree = _write(store, workspace, seen, head)
        before = comparison.tree_of(store, base)
        shown = comparison.difference(store, before, tree)
        text = commits.diff(
            store, before, tree, stat=stat, limit_bytes=_PATCH_BYTES, paths=list(shown)
        )
        branch = None if taken is None else taken.branch
        concealed = {
            path
            for tip in dict.fromkeys([branch, *site.committed])
            if tip is not None
            for path, moved in comparison.difference(store, base, tip).items()
            if path not in shown or shown[path].after != moved.after
        }
        names = tuple(path.shown() for path in sorted(concealed))
        ignoring = any(path.name == b".gitignore" for path in shown)
        return Patch(
            text, names, left_out, refused=refused, ignored=seen.ignored if ignoring else 0
        )


def _taken(site: Site, workspace: WorkspaceFiles) -> tuple[ImportedRefs | None, str]:
    """What is committed, or why that cannot be read."""
    try:
        taken = site.take(workspace, everything=False)
    except (StateError, DriverError) as error:
        return None, error.message
    return taken, "" if taken is not None else _NO_REPOSITORY


def diff_between(
    plan: WorkspacePlan,
    store: IntakeRepository,
    then: WorkspaceFiles,
    now: WorkspaceFiles,
    *,
    stat: bool,
) -> Patch:
    """The difference between two states of a workspace."""
    before, after = (
        _write(store, workspace, survey(store, workspace, plan.base_commit), None)
        for workspace in (then, now)
    )
    return Patch(commits.diff(store, before, after, stat=stat, limit_bytes=_PATCH_BYTES))


def _files(
    site: Site, workspace: WorkspaceFiles, store: IntakeRepository, head: str | None
) -> ObjectId:
    staged = staged_paths(site, workspace)
    seen = survey(store, workspace, site.plan.base_commit, also=head, staged=staged)
    # As git would commit them.
    found = {path: mode for path, mode in seen.found.items() if path not in seen.own_rules}
    return _write(store, workspace, seen._replace(found=found), head)


def _write(
    store: IntakeRepository, workspace: WorkspaceFiles, seen: FileStatus, head: str | None
) -> ObjectId:
    """Writes the files as a tree, with the submodules that HEAD records or that moved since."""
    links = recovery_save.find_gitlinks(store, workspace, seen, head)
    return recovery_save.write_survey(store, seen, gitlinks=links)


def export_commits(site: Site, *, everything: bool) -> ExportedCommits | None:
    """Imports the commits of the branch; with `everything`, commits the remaining changes on top.

    Returns None when there is no branch. Raises StateError.
    """
    with site.opened() as (workspace, store):
        taken = site.take(workspace, everything=False)
        if taken is None:
            raise StateError(_NO_REPOSITORY, hint=_HINT)
        tip: str | None = taken.branch
        if everything:
            author = Author(recovery_save.NAME, recovery_save.ADDRESS)
            tree = _files(site, workspace, store, taken.head)
            tip = _commit_files(site, store, tip, tree, _REST, author) or tip
        if tip is None:
            return None
        return ExportedCommits(tip, _export_parts(site, workspace, store, tip))


def commit(site: Site, message: str, author: Author) -> CommitResult:
    """Commits all files on the capsule's branch. The objects are in the owner's repository; the
    caller passes them to the capsule. Raises StateError if HEAD is elsewhere or nothing changed.
    """
    branch = site.plan.branch
    with site.opened() as (workspace, store):
        taken = site.take(workspace, everything=False)
        if taken is None:
            raise StateError(_NO_REPOSITORY, hint=_HINT)
        for name in (b"config", b"HEAD"):
            # Git inside would block on a pipe.
            if workspace.tree.kind(GIT.child(name)) != "file":
                raise StateError(f"`.git/{name.decode()}` in the workspace is not a regular file")
        if taken.head_ref != f"refs/heads/{branch}":
            raise StateError(f"the workspace is not on its branch `{branch}`")
        tree = _files(site, workspace, store, taken.head)
        text = message.encode(errors="surrogateescape").rstrip(b"\n") + b"\n"
        made = _commit_files(site, store, taken.head, tree, text, author)
        if made is None:
            raise StateError("nothing to commit")
        notes = _export_parts(site, workspace, store, made)
        known = [taken.head] if taken.head is not None else []
        return CommitResult(made, taken.head, comparison.pack(store, made, known=known), notes)


def _export_parts(
    site: Site, workspace: WorkspaceFiles, store: IntakeRepository, commit: str
) -> tuple[str, ...]:
    """Raises StateError if the owner could not check out the commit with its submodules."""
    parts = site.export_parts(workspace, store, [commit])
    parts.require_whole()
    return parts.notes()


def tree(site: Site) -> str:
    """The tree that a commit of all files would have. Imports nothing into the owner's repository.

    Raises StateError when the workspace or its repository cannot be read.
    """
    with site.opened() as (workspace, store):
        taken = site.take(workspace, everything=False)
        if taken is None:
            raise StateError(_NO_REPOSITORY, hint=_HINT)
        return str(_files(site, workspace, store, taken.head))


def has_hook(site: Site, name: str) -> bool:
    """Whether a commit in the workspace would run a hook, judging by its files."""
    with site.opened() as (workspace, _):
        hook = GIT.child(b"hooks").child(name.encode())
        settings = workspace.tree.read(GIT.child(b"config"), limit_bytes=_CONFIG_BYTES) or b""
        return workspace.tree.kind(hook) == "file" or b"hookspath" in settings.lower()


def _commit_files(
    site: Site, store: IntakeRepository, parent: str | None, tree: str, text: bytes, author: Author
) -> str | None:
    """Commits a tree in the owner's repository; None if the parent has the same tree."""
    if parent is not None and comparison.tree_of(store, parent) == tree:
        return None
    parents = [] if parent is None else [parent]
    made = commits.commit(store, tree, parents, text, author, author, int(time.time()))
    commits.publish(store, site.plan.repository, [made], known=parents, search=site.search)
    return made
