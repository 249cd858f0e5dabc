"""The parts of every capsule, in the order in which they are created; removal goes backwards."""

from __future__ import annotations

from atoll.drivers import registry
from atoll.engine.browser.profiles import BrowserProfile
from atoll.engine.history.workspace import Workspace
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.model.plan import CapsulePlan, Removal
from atoll.model.state import CapsuleRecord


class PrivateHome(Part):
    """HOME and TMPDIR as the isolation driver makes them, and the cgroup of the capsule.

    With layers they are snapshotted with the workspace.
    """

    name = "isolation"

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


_parts: list[Part] = [Workspace(), PrivateHome(), BrowserProfile()]


def registered() -> tuple[Part, ...]:
    return tuple(_parts)


def register(part: Part) -> None:
    """Adds a part, for all capsules of this process. Replaces one of the same name."""
    _parts[:] = [*(known for known in _parts if known.name != part.name), part]
