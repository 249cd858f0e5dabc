"""The plans of a capsule's workspace and isolation, stored before it was made."""

from __future__ import annotations

import json
from pathlib import Path

from atoll.engine.state.session import Session
from atoll.host import files
from atoll.model.enclosure import Limits
from atoll.model.errors import StateError
from atoll.model.plan import IsolationPlan, Lease, WorkspacePlan
from atoll.model.state import CapsuleRecord

_NOTE = "workspace.json"


def workspace_plan(session: Session, capsule: CapsuleRecord) -> WorkspacePlan:
    plans = [lease.plan for lease in session.store.leases(capsule)]
    limits = next((plan.limits for plan in plans if isinstance(plan, IsolationPlan)), Limits())
    for plan in plans:
        if isinstance(plan, WorkspacePlan):
            return plan._replace(disk_bytes=limits.disk_bytes or 0)
    raise _removed(capsule)


def isolation_plan(session: Session, capsule: CapsuleRecord) -> IsolationPlan:
    for lease in session.store.leases(capsule):
        if isinstance(lease.plan, IsolationPlan):
            return lease.plan
    raise _removed(capsule)


def _removed(capsule: CapsuleRecord) -> StateError:
    return StateError(f"the capsule `{capsule.name}` has been removed", hint="atoll ls")


def payload_of(plan: WorkspacePlan) -> str:
    """The plan as the part `workspace` stores it."""
    return json.dumps(Lease(kind="workspace", plan=plan).payload())


def set_workspace_plan(session: Session, capsule: CapsuleRecord, plan: WorkspacePlan) -> None:
    session.store.set_part(capsule, "workspace", payload_of(plan))
    note_plan(capsule, plan)


def note_plan(capsule: CapsuleRecord, plan: WorkspacePlan) -> None:
    """Writes the plan beside the capsule's files, in case the database is lost while the capsule
    is removed: its description is deleted first.
    """
    path = Path(capsule.directory, _NOTE)
    files.make_private_directory(path.parent)
    files.write_atomic(path, payload_of(plan).encode(), durable=False)


def find_note(directory: Path) -> WorkspacePlan | None:
    """The workspace plan noted in a capsule's directory."""
    content = files.read_regular(directory / _NOTE, limit_bytes=1 << 20)
    try:
        plan = Lease.parse("workspace", json.loads(content or b"")).plan
    except (ValueError, TypeError, KeyError):
        return None
    return plan if isinstance(plan, WorkspacePlan) else None
