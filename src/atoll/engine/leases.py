"""What a capsule holds, as it was written down before it was made."""

from __future__ import annotations

import json
from pathlib import Path

from atoll.engine.session import Session
from atoll.host import files
from atoll.model.errors import StateError
from atoll.model.plan import IsolationPlan, Lease, WorkspacePlan
from atoll.model.state import Capsule

_NOTE = "workspace.json"


def workspace_plan(session: Session, capsule: Capsule) -> WorkspacePlan:
    plans = [lease.plan for lease in session.store.leases(capsule)]
    limits = next((plan.limits for plan in plans if isinstance(plan, IsolationPlan)), {})
    for plan in plans:
        if isinstance(plan, WorkspacePlan):
            return plan._replace(disk_bytes=int(limits.get("disk_bytes", 0)))
    raise _removed(capsule)


def isolation_plan(session: Session, capsule: Capsule) -> IsolationPlan:
    for lease in session.store.leases(capsule):
        if isinstance(lease.plan, IsolationPlan):
            return lease.plan
    raise _removed(capsule)


def _removed(capsule: Capsule) -> StateError:
    return StateError(f"the capsule `{capsule.name}` has been removed", hint="atoll ls")


def note_plan(capsule: Capsule, plan: WorkspacePlan) -> None:
    """Leaves word beside the capsule's files of what they belong to, should the store be lost."""
    lease = Lease(kind="workspace", plan=plan)
    path = Path(capsule.directory, _NOTE)
    aside = path.with_suffix(".new")
    files.make_private_directory(path.parent)
    aside.write_text(json.dumps(lease.payload()))
    aside.rename(path)


def find_note(directory: Path) -> WorkspacePlan | None:
    """What a capsule's directory says that its workspace is made of."""
    content = files.read_regular(directory / _NOTE, limit_bytes=1 << 20)
    try:
        plan = Lease.parse("workspace", json.loads(content or b"")).plan
    except (ValueError, TypeError, KeyError):
        return None
    return plan if isinstance(plan, WorkspacePlan) else None
