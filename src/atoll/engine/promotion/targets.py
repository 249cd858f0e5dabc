"""Where the work of a promotion lands, and what was there before: never a guess."""

from __future__ import annotations

from atoll.engine.promotion import stages
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.promotion import (
    Promotion,
    PromotionSpec,
    PromotionState,
    StageSpec,
    StepAct,
    StepState,
)
from atoll.model.state import ProjectRecord

PATCH = "patch"
_HEADS = "refs/heads/"


def find_branch(
    session: Session, project: ProjectRecord, stage: StageSpec, spec: PromotionSpec
) -> str:
    """The branch of the stage, else the one that the capsule started from, else the project's base,
    else the one that is checked out. A patch always goes to the owner's checkout.

    Raises StateError when none of these is a branch.
    """
    if stage.branch is not None:
        if not _is_branch(project, stage.branch):
            raise no_branch(stage.branch)
        return stage.branch
    if stage.merge != PATCH:
        for name in (spec.base_ref, stages.base_setting(session, project)):
            if name and _is_branch(project, name):
                return name
    head = git.git("symbolic-ref", "--quiet", "HEAD", cwd=project.root, allowed=(0, 1)).text.strip()
    name = head.removeprefix(_HEADS)
    if head.startswith(_HEADS) and _is_branch(project, name):
        return name
    if stage.merge == PATCH:
        raise StateError(
            f"`{printable(project.root)}` has no branch checked out to apply a patch on",
            hint="git switch BRANCH",
        )
    raise StateError(
        f"the capsule started from `{printable(spec.base_ref)}`, which is no branch, so it is not "
        "known where its work should land",
        hint=f'add to atoll.toml: [stages.{stage.name}] branch = "main", then: atoll trust',
    )


def _is_branch(project: ProjectRecord, name: str) -> bool:
    return git.find_ref(f"{_HEADS}{name}", cwd=project.git_dir) is not None


def no_branch(name: str) -> StateError:
    return StateError(
        f"there is no branch `{printable(name)}` to land on", hint=f"git branch {printable(name)}"
    )


def landed_before(
    session: Session, project: ProjectRecord, promotion: Promotion, branch: str
) -> list[tuple[str, str]]:
    """Earlier tips of the same capsule, each with the commit that it became on a branch."""
    found = []
    for other in session.store.promotions(project.id, promotion.capsule):
        if other.id == promotion.id or other.state is PromotionState.UNDONE:
            continue
        for step in session.store.promotion_steps(other.id):
            is_landed = step.act is StepAct.LAND and step.state is StepState.DONE
            if is_landed and step.facts.ref == f"{_HEADS}{branch}" and step.facts.way != PATCH:
                found.append((other.spec.commit, step.facts.new))
    return found


def find_previous(
    session: Session, project: ProjectRecord, promotion: Promotion, stage: str
) -> str:
    """The commit of the last promotion that passed a stage and was not undone; or else what the
    branch had before this one, or the base of the work.
    """
    for other in session.store.promotions(project.id):
        if other.id == promotion.id or other.state is PromotionState.UNDONE:
            continue
        for step in reversed(session.store.promotion_steps(other.id)):
            is_passed = step.act is StepAct.PASS and step.state is StepState.DONE
            if is_passed and step.stage == stage:
                return step.facts.commit
    for step in session.store.promotion_steps(promotion.id):
        if step.act is StepAct.LAND and step.state is StepState.DONE:
            return step.facts.old
    return promotion.spec.base_commit
