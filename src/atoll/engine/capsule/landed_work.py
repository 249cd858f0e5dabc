"""Work that a promotion has landed: its content is on a branch of the owner's, as other commits."""

from __future__ import annotations

from atoll.drivers import registry
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.plan import WorkspacePlan
from atoll.model.promotion import PromotionState, PromotionStep, StepAct, StepState
from atoll.model.state import CapsuleRecord, Work


def without_landed(
    session: Session, capsule: CapsuleRecord, plan: WorkspacePlan, work: Work
) -> Work:
    """The work without its commits, if all of them are on the capsule's branch, and what that
    branch holds has landed, was not taken back and is still there.
    """
    if not work.commits or work.off_branch or work.fetched or capsule.branch is None:
        return work
    stands = git.find_ref(f"refs/heads/{capsule.branch}", cwd=plan.repository)
    tip = registry.layered_driver(plan.driver).tip(plan) if plan.is_layered else stands
    if tip is None or stands not in (None, tip):
        return work
    for promotion in session.store.promotions(capsule.project_id, capsule.name):
        is_it = promotion.spec.commit == tip and promotion.state is not PromotionState.UNDONE
        steps = session.store.promotion_steps(promotion.id) if is_it else []
        if any(_is_on_branch(step, plan.repository) for step in steps):
            return work._replace(commits=0)
    return work


def _is_on_branch(step: PromotionStep, repository: str) -> bool:
    facts = step.facts
    if step.act is not StepAct.LAND or step.state is not StepState.DONE or facts.way == "patch":
        return False
    stands = git.find_ref(facts.ref, cwd=repository)
    return stands is not None and git.is_ancestor(facts.new, stands, cwd=repository)
