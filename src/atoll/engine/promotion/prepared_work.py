"""What would land: the commit with which the branch would go on, made of a capsule's work.

Nothing is moved here. The commits are objects in the owner's repository that no ref names yet.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from atoll.engine.agent.prompts import subject_of
from atoll.engine.promotion import merge_capsule
from atoll.engine.promotion.journal import wait
from atoll.engine.promotion.merge_capsule import MergeConflict, MergeSpec
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.errors import AtollError, DriverError, PrerequisiteError, StateError
from atoll.model.names import printable
from atoll.model.promotion import Promotion, PromotionSpec
from atoll.model.state import ProjectRecord

_MOST_SUBJECTS = 30
_MESSAGE_BYTES = 64 << 10
_SHOWN_CONFLICTS = 10
_TRAILERS = ("Atoll-Capsule: ", "Atoll-Agent: ")


class WorkRange(NamedTuple):
    """The commits of a capsule from `start`, which is in none of them, to the tip."""

    start: str
    tip: str


class LandingRequest(NamedTuple):
    """What of which promotion is to land how and where."""

    promotion: Promotion
    way: str
    branch: str
    work: WorkRange

    @property
    def spec(self) -> PromotionSpec:
        return self.promotion.spec


class PreparedWork(NamedTuple):
    """A commit with which a branch may go on."""

    old: str
    new: str
    tree: str
    is_there: bool = False
    """Whether the branch has exactly these files already."""


def tree_of(commit: str, *, repository: str) -> str:
    answer = git.git(
        "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}", cwd=repository
    )
    return answer.text.strip()


def find_start(
    repository: str, spec: PromotionSpec, onto: str, landed: list[tuple[str, str]]
) -> str:
    """Where the work begins that a branch at `onto` does not have.

    `landed` are pairs of a tip of the same capsule that has landed, and the commit that it became.
    """
    for tip, commit in landed:
        is_part = git.is_ancestor(tip, spec.commit, cwd=repository)
        if is_part and git.is_ancestor(commit, onto, cwd=repository):
            return tip
    answer = git.git("merge-base", onto, spec.commit, cwd=repository, allowed=(0, 1))
    shared = answer.text.split("\n", 1)[0]
    if shared and git.is_ancestor(spec.base_commit, shared, cwd=repository):
        return shared
    # Its history was rewritten: what it has changed is relative to where it started.
    return spec.base_commit


def prepare_work(
    session: Session, project: ProjectRecord, request: LandingRequest, old: str
) -> PreparedWork:
    """Makes the commit with which the branch, which is at `old`, would go on.

    Raises StoppedError at a conflict, which it leaves in a capsule for the owner.
    """
    repository, work = project.git_dir, request.work
    if request.way in ("rebase", "ff"):
        _require_linear(repository, work, request.way)
        is_ahead = git.is_ancestor(old, work.tip, cwd=repository)
        new = work.tip if is_ahead else _merged(session, project, request, old)
        tree = tree_of(new, repository=repository)
        return PreparedWork(old, new, tree, is_there=new == old)
    before, start, tip = (
        tree_of(commit, repository=repository) for commit in (old, work.start, work.tip)
    )
    identity = require_identity(project)
    message = render_message(project, request)
    if before == start or git.is_ancestor(old, work.tip, cwd=repository):
        tree = tip
    else:
        if request.way != "merge":
            whole = commit_tree(repository, tip, [work.start], message, identity)
            request = request._replace(work=work._replace(tip=whole))
        tree = tree_of(_merged(session, project, request, old), repository=repository)
    is_there = git.is_ancestor(work.tip, old, cwd=repository)
    is_there |= tree == before and request.way != "merge"
    parents = [old, work.tip] if request.way == "merge" else [old]
    new = old if is_there else commit_tree(repository, tree, parents, message, identity)
    return PreparedWork(old, new, before if is_there else tree, is_there=is_there)


def _require_linear(repository: str, work: WorkRange, way: str) -> None:
    if not git.is_ancestor(work.start, work.tip, cwd=repository):
        raise StateError(
            f"the history of the capsule was rewritten, so its commits cannot land by `{way}`",
            hint='set merge = "squash" for the stage in atoll.toml',
        )


def _merged(session: Session, project: ProjectRecord, request: LandingRequest, old: str) -> str:
    name, address = git.identity(cwd=project.root)
    capsule, branch = request.promotion.capsule, printable(request.branch)
    merging = MergeSpec(
        request.way,
        request.work.start,
        request.work.tip,
        old,
        request.spec.level,
        request.spec.network,
        _variables(name or "Atoll", address or "atoll@localhost"),
    )
    found = merge_capsule.merge(session, project, merging)
    if not isinstance(found, MergeConflict):
        if not git.is_ancestor(old, found, cwd=project.git_dir):
            # The commit itself may land: nothing that runs in a capsule drops the owner's commits.
            raise DriverError(f"the merged commit {found[:10]} does not contain {old[:10]}")
        return found
    shown = ", ".join(f"`{printable(path)}`" for path in found.paths[:_SHOWN_CONFLICTS])
    if (more := len(found.paths) - _SHOWN_CONFLICTS) > 0:
        shown += f" and {more} more"
    reason = f"the work conflicts with what is new on `{branch}`: {shown}"
    try:
        kept = merge_capsule.keep_conflict(session, project, capsule, request.branch, merging)
    except AtollError as error:
        raise wait(
            f"{reason}; no capsule could be made to resolve it in: {error.message}",
            f"atoll new {capsule}-again --from {branch}, and git cherry-pick there",
        ) from error
    raise wait(
        f"{reason}; the conflict is in the capsule `{kept}`",
        merge_capsule.hint_of(kept, request.way),
        kept=kept,
    )


def require_identity(project: ProjectRecord) -> dict[str, str]:
    """The owner as author and committer. Raises PrerequisiteError when git has no name."""
    name, address = git.identity(cwd=project.root)
    if not name or not address:
        raise PrerequisiteError(
            "git has no user name and email for the commit that lands",
            hint='git config --global user.name "NAME" && git config --global user.email "ADDRESS"',
        )
    return _variables(name, address)


def _variables(name: str, address: str) -> dict[str, str]:
    return {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", name), ("EMAIL", address))
    }


def commit_tree(
    repository: str, tree: str, parents: list[str], message: str, identity: dict[str, str]
) -> str:
    words = [word for parent in parents for word in ("-p", parent)]
    answer = git.git(
        *git.DURABLE, "commit-tree", tree, *words, "-F", "-",
        cwd=repository, env=identity, stdin=os.fsencode(message),
    )  # fmt: skip
    return answer.text.strip()


def render_message(project: ProjectRecord, request: LandingRequest) -> str:
    """The owner's message, or else what the agent was asked for and its commits say."""
    trailers = [f"Atoll-Capsule: {request.promotion.capsule}"]
    trailers += [f"Atoll-Agent: {request.spec.agent}"] if request.spec.agent else []
    body = request.spec.message.strip() or _default_message(project, request)
    return f"{body[:_MESSAGE_BYTES]}\n\n" + "\n".join(trailers) + "\n"


def _default_message(project: ProjectRecord, request: LandingRequest) -> str:
    listed = git.git(
        "log", "-z", "--reverse", "--no-merges", f"--max-count={_MOST_SUBJECTS + 1}",
        "--encoding=UTF-8", "--format=%B", f"{request.work.start}..{request.work.tip}", "--",
        cwd=project.git_dir,
    ).stdout.decode(errors="replace")  # fmt: skip
    messages = [message for text in listed.split("\0") if (message := _clean(text))]
    if len(messages) == 1:
        return messages[0]
    subjects = [text.split("\n", 1)[0] for text in messages]
    first = subjects[0] if subjects else f"work of {request.promotion.capsule}"
    subject = subject_of(request.spec.task) or first
    lines = [f"* {line}" for line in subjects[:_MOST_SUBJECTS]]
    lines += ["* …"] if len(subjects) > _MOST_SUBJECTS else []
    return "\n".join([subject, *(["", *lines] if lines else [])])


def _clean(text: str) -> str:
    """A message of an agent, without control characters and without trailers of Atoll."""
    lines = [printable(line.rstrip()) for line in text.strip().split("\n")]
    return "\n".join(line for line in lines if not line.startswith(_TRAILERS)).strip()
