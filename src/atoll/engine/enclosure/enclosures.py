"""How a process is started inside a capsule."""

from __future__ import annotations

from atoll.drivers import registry
from atoll.engine.enclosure import views
from atoll.engine.state.leases import isolation_plan, workspace_plan
from atoll.engine.state.session import Session
from atoll.model.enclosure import Enclosure
from atoll.model.state import CapsuleRecord


def enclosure(session: Session, capsule: CapsuleRecord, *, is_open: bool = False) -> Enclosure:
    """How to start a process inside the capsule.

    Opens the capsule's view, if it has one, unless `is_open` or the caller opens it later.
    """
    plan = isolation_plan(session, capsule)
    if plan.has_view and not is_open:
        views.open_view(session, capsule)
    inside = registry.isolation_driver(plan.driver).enclosure(plan, session.owner)
    if not inside.limits:
        return inside
    return views.with_disk_root(workspace_plan(session, capsule), inside)
