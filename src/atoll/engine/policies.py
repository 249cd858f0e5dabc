"""What a capsule may reach now: how it was made, what its owner has granted, what runs asked for.

Read anew for every decision, so that a grant counts at once and a set-up's wider network ends with
the set-up, also when the command that made it was killed.
"""

from __future__ import annotations

from atoll.engine import registries
from atoll.engine.leases import isolation_plan
from atoll.engine.session import Session
from atoll.host import locks
from atoll.model import presets
from atoll.model.egress import Policy
from atoll.model.errors import StateError
from atoll.model.modes import widest
from atoll.model.plan import IsolationPlan
from atoll.model.state import Capsule, CapsuleState


def policy_of(session: Session, capsule_id: int) -> Policy:
    """Nothing at all for a capsule that is not there (any more)."""
    capsule = session.store.capsule(capsule_id)
    if capsule is None or capsule.state is CapsuleState.REMOVING:
        return Policy("none")
    try:
        plan = isolation_plan(session, capsule)
    except StateError:
        return Policy("none")
    granted = [*session.store.project_grants(capsule.project_id), *session.store.grants(capsule)]
    texts = presets.expand([*plan.allow, *granted], registries.found(session))
    return Policy.of(_mode(session, capsule, plan), texts)


def _mode(session: Session, capsule: Capsule, plan: IsolationPlan) -> str:
    if capsule.state is CapsuleState.CREATING and plan.setup_network:
        return plan.setup_network
    living = (
        run.network
        for run in session.store.widening_runs(capsule)
        if locks.is_locked(session.run_lock(run.token).path)
    )
    return widest(plan.network, *filter(None, living))
