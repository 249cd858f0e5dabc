"""What differs between two views of a capsule, each of which has objects that the other lacks.

Both states are brought into a throw-away repository, as all that leaves a capsule is brought out:
as a pack, through a quarantine. Only there a git of the host compares them.
"""

from __future__ import annotations

from atoll.drivers.workspace.private import PrivateSite
from atoll.host import git
from atoll.model.plan import Enclosure, WorkspacePlan

Seen = tuple[WorkspacePlan, Enclosure]
"""A state of a workspace and the view that shows it."""


def compare(before: Seen, after: Seen, *, place: str, stat: bool) -> bytes:
    """A patch from one to the other. `place` is an empty directory of the host's."""
    store = git.make_store(f"{place}/compared", like=after[0].repository)
    commits = [_brought(plan, inside, store) for plan, inside in (before, after)]
    flags = ["--no-color", "--no-ext-diff", "--no-textconv", *(["--stat"] if stat else [])]
    return git.git("diff", *flags, *commits, "--", cwd=store).stdout


def _brought(plan: WorkspacePlan, inside: Enclosure, store: str) -> str:
    """What the view shows, as a commit in the store."""
    site = PrivateSite(plan._replace(repository=store), inside, lambda _: None)
    commit = str(site.commit_rest(None))
    site.deliver([commit])
    return commit
