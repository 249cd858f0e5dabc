"""The network rules of a capsule: granted, revoked, listed, and applied as its policy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.engine.network import daemon_client
from atoll.engine.network import egress_log as attempts_of
from atoll.engine.project import levels, registries
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.host import locks
from atoll.model import presets
from atoll.model.egress import Policy
from atoll.model.errors import IsolationError, SpecError, StateError
from atoll.model.plan import IsolationPlan
from atoll.model.presets import MODES, widest
from atoll.model.secret import GrantRecord
from atoll.model.state import CapsuleRecord, CapsuleState, ProjectRecord


class Allowed(NamedTuple):
    rule: str
    source: str
    """`made` with the capsule, `granted` to it, or granted to the `project`."""
    means: tuple[str, ...]


def has_egress(level: str, plan: IsolationPlan) -> bool:
    """Whether there is anything to decide: a network of its own that is let out."""
    is_let_out = widest(plan.network, plan.setup_network) != "none"
    return is_let_out and levels.has_own_network(level)


def require_mode(session: Session, capsule: CapsuleRecord, mode: str) -> None:
    """Raises when a run of this capsule cannot have that network."""
    plan = isolation_plan(session, capsule)
    if mode not in MODES:
        raise SpecError(f"unknown network mode `{mode}`", hint=f"one of {', '.join(MODES)}")
    if mode == "none":
        return
    if not has_egress(capsule.level, plan):
        raise IsolationError(
            f"`{capsule.name}` was created without network access",
            hint=f"atoll new NAME --network {mode}",
        )
    if MODES.index(mode) < MODES.index(plan.network):
        raise SpecError(
            f"`{capsule.name}` has the network `{plan.network}`, which its runs share: a run "
            "can use `none` or a wider mode",
            hint="--network none",
        )


def grant(session: Session, capsule: CapsuleRecord, text: str) -> None:
    """Allows a capsule one more destination, from the next connection on."""
    rule = _parse(text)
    plan = isolation_plan(session, capsule)
    if not has_egress(capsule.level, plan):
        is_own = levels.has_own_network(capsule.level)
        has = "no network access" if is_own else "the host's own network"
        raise IsolationError(
            f"`{capsule.name}` has {has}: rules have no effect",
            hint="atoll new NAME --network allow",
        )
    registries.refresh(session, [rule])
    session.store.add_grant(capsule, rule)
    daemon_client.notify(session, capsule)


def revoke(session: Session, capsule: CapsuleRecord, text: str) -> None:
    rule = _parse(text)
    if not session.store.drop_grant(capsule, rule):
        raise StateError(
            f"`{capsule.name}` has no rule `{rule}`", hint=f"atoll allow {capsule.name}"
        )
    daemon_client.notify(session, capsule)


def grant_project(session: Session, project: ProjectRecord, text: str) -> None:
    """Allows every capsule of a project one more destination, including later ones. A capsule
    without network access still has none.
    """
    rule = _parse(text)
    registries.refresh(session, [rule])
    session.store.add_project_grant(project.id, rule)
    _notify_all(session, project)


def revoke_project(session: Session, project: ProjectRecord, text: str) -> None:
    rule = _parse(text)
    if not session.store.drop_project_grant(project.id, rule):
        raise StateError(
            f"the project `{project.name}` has no rule `{rule}`",
            hint="atoll allow --project",
        )
    _notify_all(session, project)


def _notify_all(session: Session, project: ProjectRecord) -> None:
    for capsule in session.store.capsules(project.id):
        if capsule.state is CapsuleState.READY and levels.has_own_network(capsule.level):
            daemon_client.notify(session, capsule)


def _parse(text: str) -> str:
    from atoll.model import rules  # noqa: PLC0415 - only for those who grant something

    try:
        return rules.require_allow_rule(text)
    except ValueError as error:
        raise SpecError(f"`{text}` {error}", hint="atoll allow NAME api.example.org") from error


def attempts(
    capsule: CapsuleRecord, *, count: int | None, follow: bool
) -> Iterator[attempts_of.EgressAttempt]:
    """What was tried, the oldest first; with `follow` what is tried from now on, too."""
    directory = Path(capsule.directory)
    found = attempts_of.read_attempts(directory)
    yield from found if count is None else found[-count:]
    if follow:
        yield from attempts_of.follow(directory)


def allowed(session: Session, capsule: CapsuleRecord) -> list[Allowed]:
    """The rules of a capsule, in the order in which they are applied."""
    made = [(rule, "made") for rule in isolation_plan(session, capsule).allow]
    shared = [(rule, "project") for rule in session.store.project_grants(capsule.project_id)]
    granted = [(rule, "granted") for rule in session.store.grants(capsule)]
    return _explained(session, [*made, *shared, *granted])


def allowed_to_project(session: Session, project: ProjectRecord) -> list[Allowed]:
    """What every capsule of a project may reach."""
    rules = session.store.project_grants(project.id)
    return _explained(session, [(rule, "project") for rule in rules])


def _explained(session: Session, rules: list[tuple[str, str]]) -> list[Allowed]:
    found = registries.found(session)
    return [Allowed(rule, source, tuple(presets.expand([rule], found))) for rule, source in rules]


def policy_of(session: Session, capsule_id: int) -> Policy:
    """What a capsule may reach now: its own rules, what was granted since, what runs asked for.

    Read for every decision, so that a grant takes effect at once, and a wider network for the
    set-up ends with the set-up, even when the command that made the capsule was killed.
    """
    capsule = session.store.capsule(capsule_id)
    if capsule is None or capsule.state is CapsuleState.REMOVING:
        return Policy("none")
    try:
        plan = isolation_plan(session, capsule)
    except StateError:
        return Policy("none")
    granted = [
        *session.store.project_grants(capsule.project_id),
        *session.store.grants(capsule),
        *brokered_rules(session, capsule_id),
    ]
    texts = presets.expand([*plan.allow, *granted], registries.found(session))
    return Policy.of(_mode(session, capsule, plan), texts)


def brokered_grants(session: Session, capsule_id: int) -> list[GrantRecord]:
    """The brokered secrets that were granted to a capsule and have not expired."""
    now = time.time()
    return [
        grant
        for grant in session.store.secret_grants(capsule_id)
        if grant.secret.delivery.broker is not None and not grant.is_expired(now)
    ]


def brokered_rules(session: Session, capsule_id: int) -> list[str]:
    """What a capsule must reach to use them."""
    scopes = (grant.secret.delivery.broker for grant in brokered_grants(session, capsule_id))
    hosts = {host for scope in scopes if scope is not None for host in scope.hosts}
    return [f"{host}:443" for host in sorted(hosts)]


def _mode(session: Session, capsule: CapsuleRecord, plan: IsolationPlan) -> str:
    if capsule.state is CapsuleState.CREATING and plan.setup_network:
        return plan.setup_network
    living = (
        run.network
        for run in session.store.widening_runs(capsule)
        if locks.is_locked(session.run_lock(run.token).path)
    )
    return widest(plan.network, *filter(None, living))
