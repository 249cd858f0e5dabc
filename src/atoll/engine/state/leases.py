"""The payloads of the parts `workspace` and `isolation`: plans that are stored before a capsule is
made, and the layers of each snapshot.
"""

from __future__ import annotations

import json
from pathlib import Path

from atoll.engine.state.database import DamagedError
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.host import files
from atoll.model.errors import StateError
from atoll.model.plan import IsolationPlan, Lease, Plan, WorkspacePlan
from atoll.model.state import CapsuleRecord, Snapshot

WORKSPACE = "workspace"
ISOLATION = "isolation"
_NOTE = "workspace.json"


def workspace_plan(session: Session, capsule: CapsuleRecord) -> WorkspacePlan:
    payloads = session.store.parts(capsule)
    plan = _parse(WORKSPACE, payloads.get(WORKSPACE))
    if not isinstance(plan, WorkspacePlan):
        raise _removed(capsule)
    isolation = _parse(ISOLATION, payloads.get(ISOLATION))
    limit = isolation.limits.disk_bytes if isinstance(isolation, IsolationPlan) else None
    return plan._replace(disk_bytes=limit or 0)


def isolation_plan(session: Session, capsule: CapsuleRecord) -> IsolationPlan:
    plan = _parse(ISOLATION, session.store.part(capsule, ISOLATION))
    if not isinstance(plan, IsolationPlan):
        raise _removed(capsule)
    return plan


def find_workspace_plan(store: Store, capsule: CapsuleRecord) -> WorkspacePlan | None:
    """The stored plan as it is, without the limits of the capsule."""
    plan = _parse(WORKSPACE, store.part(capsule, WORKSPACE))
    return plan if isinstance(plan, WorkspacePlan) else None


def snapshot_layers(snapshot: Snapshot) -> tuple[str, ...]:
    """The layers that a snapshot of the workspace consists of, the lowest first."""
    try:
        return tuple(json.loads(snapshot.parts[WORKSPACE]))
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(error) from error


def find_damage(store: Store) -> list[str]:
    """The problems that an integrity check and reading all records and plans find."""
    wrong = store.damage()
    if wrong:
        return wrong
    try:
        for capsule in store.capsules():
            for kind in (WORKSPACE, ISOLATION):
                _parse(kind, store.part(capsule, kind))
        for snapshot in store.snapshots():
            snapshot_layers(snapshot)
        for project in store.projects():
            store.secrets(project.id)
    except StateError as error:
        wrong.append(error.message)
    return wrong


def _parse(kind: str, payload: str | None) -> Plan | None:
    try:
        return Lease.parse(kind, json.loads(payload)).plan if payload else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> DamagedError:
    return DamagedError(f"the database holds a damaged record: {error}")


def _removed(capsule: CapsuleRecord) -> StateError:
    return StateError(f"the capsule `{capsule.name}` has been removed", hint="atoll ls")


def payload_of(plan: Plan) -> str:
    """The plan as its part stores it."""
    kind = WORKSPACE if isinstance(plan, WorkspacePlan) else ISOLATION
    return json.dumps(Lease(kind=kind, plan=plan).payload())


def set_workspace_plan(session: Session, capsule: CapsuleRecord, plan: WorkspacePlan) -> None:
    session.store.set_part(capsule, WORKSPACE, payload_of(plan))
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
        plan = Lease.parse(WORKSPACE, json.loads(content or b"")).plan
    except (ValueError, TypeError, KeyError):
        return None
    return plan if isinstance(plan, WorkspacePlan) else None
