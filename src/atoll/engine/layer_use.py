"""Which layers a capsule needs: those that it lies on, its snapshots' and those of a held view."""

from __future__ import annotations

from pathlib import Path

from atoll.drivers.layers import history
from atoll.engine.leases import workspace_plan
from atoll.engine.session import Session
from atoll.host import files
from atoll.model.errors import StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Capsule

HELD_LAYERS = "held-layers"
"""A file in a capsule's directory: layers that its view may still be mounted on."""


def plan_of(session: Session, capsule: Capsule) -> WorkspacePlan | None:
    """What the capsule's workspace is made of, if that are layers."""
    try:
        plan = workspace_plan(session, capsule)
    except StateError:
        return None
    return plan if plan.pool else None


def layers_of(session: Session, capsule: Capsule) -> set[str]:
    """What a capsule and its snapshots lie on."""
    plan = plan_of(session, capsule)
    if plan is None:
        return set()
    points = {layer for s in session.store.snapshots(capsule) for layer in s.layers}
    held = held_layers(session, capsule)
    return {*plan.layers, plan.upper, history.layer_of(plan), *points, *held}


def held_layers(session: Session, capsule: Capsule) -> set[str]:
    """The layers that a view which is still held was opened with, before it was flattened."""
    path = Path(capsule.directory, HELD_LAYERS)
    if not path.exists():
        return set()
    lock = session.view_lock(capsule)
    if lock.acquire():
        # The next view is opened on what the plan says.
        path.unlink(missing_ok=True)
        lock.release()
        return set()
    content = files.read_regular(path, limit_bytes=1 << 20)
    return set((content or b"").decode(errors="replace").split())
