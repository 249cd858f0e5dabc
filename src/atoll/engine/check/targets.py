"""What is checked of a capsule: a commit that the owner's repository has, and how it may run."""

from __future__ import annotations

from atoll.drivers import registry
from atoll.engine.capsule import exports, removal
from atoll.engine.check.checks import CheckTarget
from atoll.engine.run import internal_runs
from atoll.engine.secret import scan
from atoll.engine.state.leases import isolation_plan, workspace_plan
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.errors import StateError
from atoll.model.state import CapsuleRecord


def target_of(session: Session, capsule: CapsuleRecord) -> CheckTarget:
    """What a capsule has committed: its commits are exported first. The caller holds its lock."""
    plan = workspace_plan(session, capsule)
    if capsule.branch is None:
        commit = git.find_commit("HEAD", cwd=plan.checkout)
        if commit is None:
            raise StateError(f"`{plan.checkout}` has no commit yet", hint="git commit")
    else:
        commit = exports.export(session, capsule).commit
    return at_commit(session, capsule, commit)


def target_with_everything(session: Session, capsule: CapsuleRecord) -> CheckTarget:
    """Everything in a capsule on layers, with what is not committed, as a commit that no ref names.
    The caller holds its lock.
    """
    plan = workspace_plan(session, capsule)
    search = scan.find_search(session, capsule)
    driver = registry.layered_driver(plan.driver)
    exported = driver.export_commits(plan, everything=True, search=search)
    if exported is None:
        raise StateError(
            f"`{capsule.name}` has no branch `{capsule.branch}` any more",
            hint=f"atoll run {capsule.name} -- git switch -c {capsule.branch}",
        )
    scan.require_clean(capsule, plan.repository, exported.commit, search)
    exports.warn_of(session, capsule, exported.notes)
    return at_commit(session, capsule, exported.commit)


def at_commit(session: Session, capsule: CapsuleRecord, commit: str) -> CheckTarget:
    """A commit of a capsule, in the owner's repository. Its checks have the level of the capsule,
    and no wider network than the runs that can have written it.
    """
    plan = workspace_plan(session, capsule)
    tree = git.find_tree(commit, cwd=plan.repository)
    if tree is None:
        raise StateError(f"there is no commit `{commit}` in your repository", hint="git fsck")
    narrowest, _ = internal_runs.narrowest(session, capsule)
    return CheckTarget(
        commit=commit,
        tree=tree,
        base_commit=capsule.base_commit,
        level=capsule.level,
        network=narrowest or isolation_plan(session, capsule).network,
    )


def has_uncommitted(session: Session, capsule: CapsuleRecord, target: CheckTarget) -> bool:
    """Whether the workspace differs from what is checked. True when in doubt."""
    plan = workspace_plan(session, capsule)
    if plan.is_layered:
        try:
            return registry.layered_driver(plan.driver).tree(plan) != target.tree
        except StateError:
            return True
    if capsule.branch is None:
        return git.count_changed(cwd=plan.checkout) > 0
    work = removal.find_work(session, capsule)
    return bool(work.uncommitted or work.untracked)
