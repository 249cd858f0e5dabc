"""The parts of every capsule, in the order in which they are created; removal goes backwards."""

from __future__ import annotations

from atoll.drivers import registry
from atoll.drivers.layers.pool import Pool
from atoll.engine.browser.profiles import BrowserProfile
from atoll.engine.history.conversation import Conversation
from atoll.engine.history.workspace import Workspace
from atoll.engine.secret.part import SecretGrants
from atoll.engine.state.leases import ISOLATION, isolation_plan, payload_of
from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.model.plan import CapsulePlan, Removal
from atoll.model.state import CapsuleRecord, Snapshot


class PrivateHome(Part):
    """HOME and TMPDIR as the isolation driver makes them, and the cgroup of the capsule.

    With layers they are snapshotted with the workspace.
    """

    name = ISOLATION

    def plan_fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, plan: CapsulePlan
    ) -> CapsulePlan:
        del point
        workspace = plan.workspace
        seed = str(Pool(workspace.pool).tree(workspace.upper))
        isolation = isolation_plan(session, origin)
        return plan._replace(isolation=isolation._replace(holder=plan.directory, seed=seed))

    def lease(self, plan: CapsulePlan) -> str:
        return payload_of(plan.isolation)

    def create(
        self, session: Session, capsule: CapsuleRecord, plan: CapsulePlan, *, lock: int
    ) -> None:
        del lock
        registry.isolation_driver(plan.isolation.driver).apply(plan.isolation)
        session.reach("new.isolation", capsule.name)

    def remove(self, session: Session, capsule: CapsuleRecord, removal: Removal) -> None:
        del removal
        plan = isolation_plan(session, capsule)
        if plan.limits:
            from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - only with limits

            cgroup_limits.close_group(session, capsule)
        registry.isolation_driver(plan.driver).release(plan, home=session.home)
        session.reach("rm.isolation", capsule.name)


_parts: list[Part] = [Workspace(), PrivateHome(), BrowserProfile(), SecretGrants(), Conversation()]


def registered() -> tuple[Part, ...]:
    return tuple(_parts)


def leases(plan: CapsulePlan) -> dict[str, str]:
    """The payloads of a new capsule by part, for `Store.lease_capsules`."""
    found = {part.name: part.lease(plan) for part in _parts}
    return {name: payload for name, payload in found.items() if payload}


def register(part: Part) -> None:
    """Adds a part, for all capsules of this process. Replaces one of the same name."""
    _parts[:] = [*(known for known in _parts if known.name != part.name), part]
