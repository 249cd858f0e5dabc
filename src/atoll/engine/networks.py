"""A capsule's network as its owner sees it: what it may reach, what it wanted to reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.engine import attempts as attempts_of
from atoll.engine import daemons, levels, registries
from atoll.engine.leases import isolation_plan
from atoll.engine.session import Session
from atoll.model import presets
from atoll.model.errors import IsolationError, SpecError, StateError
from atoll.model.modes import MODES, widest
from atoll.model.plan import IsolationPlan
from atoll.model.state import Capsule, CapsuleState, Project


class Allowed(NamedTuple):
    rule: str
    source: str
    """`made` with the capsule, `granted` to it, or granted to the `project`."""
    means: tuple[str, ...]


def has_own(plan: IsolationPlan) -> bool:
    """Whether there is anything to decide: a network of its own that is let out."""
    return bool(plan.home) and widest(plan.network, plan.setup_network) != "none"


def require_mode(session: Session, capsule: Capsule, mode: str) -> None:
    """Raises when a run of this capsule cannot have that network."""
    plan = isolation_plan(session, capsule)
    if mode not in MODES:
        raise SpecError(f"there is no network `{mode}`", hint=f"one of {', '.join(MODES)}")
    if mode == "none":
        return
    if not has_own(plan):
        raise IsolationError(
            f"`{capsule.name}` was made with no way out of its network",
            hint=f"atoll new NAME --network {mode}",
        )
    if MODES.index(mode) < MODES.index(plan.network):
        raise SpecError(
            f"`{capsule.name}` has the network `{plan.network}`, and its runs share it: one of "
            "them can have none, or a wider one",
            hint="--network none",
        )


def grant(session: Session, capsule: Capsule, text: str) -> None:
    """Allows a living capsule one more destination; counts from the next connection on."""
    rule = _parse(text)
    plan = isolation_plan(session, capsule)
    if not has_own(plan):
        has = "the host's own network" if not plan.home else "no way out of its network"
        raise IsolationError(
            f"`{capsule.name}` has {has}: a rule would change nothing",
            hint="atoll new NAME --network allow",
        )
    registries.look(session, [rule])
    session.store.add_grant(capsule, rule)
    daemons.mention(session, capsule)


def revoke(session: Session, capsule: Capsule, text: str) -> None:
    rule = _parse(text)
    if not session.store.drop_grant(capsule, rule):
        raise StateError(
            f"`{rule}` was not granted to `{capsule.name}`", hint=f"atoll allow {capsule.name}"
        )
    daemons.mention(session, capsule)


def grant_project(session: Session, project: Project, text: str) -> None:
    """Allows every capsule of a project one more destination, also those that are made later. One
    that was made with no way out of its network still has none.
    """
    rule = _parse(text)
    registries.look(session, [rule])
    session.store.add_project_grant(project.id, rule)
    _mention_all(session, project)


def revoke_project(session: Session, project: Project, text: str) -> None:
    rule = _parse(text)
    if not session.store.drop_project_grant(project.id, rule):
        raise StateError(
            f"`{rule}` was not granted to the project `{project.name}`",
            hint="atoll allow --project",
        )
    _mention_all(session, project)


def _mention_all(session: Session, project: Project) -> None:
    for capsule in session.store.capsules(project.id):
        if capsule.state is CapsuleState.READY and levels.has_own_network(capsule.level):
            daemons.mention(session, capsule)


def _parse(text: str) -> str:
    from atoll.model import rules  # noqa: PLC0415 - only for those who grant something

    try:
        return rules.require_allow_rule(text)
    except ValueError as error:
        raise SpecError(f"`{text}` {error}", hint="atoll allow NAME api.example.org") from error


def attempts(capsule: Capsule, *, count: int | None, follow: bool) -> Iterator[attempts_of.Attempt]:
    """What was tried, the oldest first; with `follow` what is tried from now on, too."""
    directory = Path(capsule.directory)
    found = attempts_of.read_attempts(directory)
    yield from found if count is None else found[-count:]
    if follow:
        yield from attempts_of.follow(directory)


def allowed(session: Session, capsule: Capsule) -> list[Allowed]:
    """What a capsule may reach, in the order in which it is looked at."""
    made = [(rule, "made") for rule in isolation_plan(session, capsule).allow]
    shared = [(rule, "project") for rule in session.store.project_grants(capsule.project_id)]
    granted = [(rule, "granted") for rule in session.store.grants(capsule)]
    return _explained(session, [*made, *shared, *granted])


def allowed_to_project(session: Session, project: Project) -> list[Allowed]:
    """What every capsule of a project may reach."""
    rules = session.store.project_grants(project.id)
    return _explained(session, [(rule, "project") for rule in rules])


def _explained(session: Session, rules: list[tuple[str, str]]) -> list[Allowed]:
    found = registries.found(session)
    return [Allowed(rule, source, tuple(presets.expand([rule], found))) for rule, source in rules]
