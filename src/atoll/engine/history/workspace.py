"""The workspace as a part of a capsule.

With layers, the private home is below the same upper layer, and shares the workspace's snapshots.
The payload is the `WorkspacePlan`, and for a snapshot the list of its layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.drivers import registry
from atoll.drivers.layers.pool import new_upper
from atoll.engine.enclosure import views
from atoll.engine.state.leases import (
    WORKSPACE,
    note_plan,
    payload_of,
    snapshot_layers,
    workspace_plan,
)
from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.model.errors import StateError
from atoll.model.names import branch_of
from atoll.model.plan import CapsulePlan, Removal, WorkspacePlan
from atoll.model.state import CapsuleRecord, PartChange, Snapshot


class Workspace(Part):
    name = WORKSPACE

    def plan_fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, plan: CapsulePlan
    ) -> CapsulePlan:
        before = require_layers(session, origin)
        driver = registry.layered_driver(before.driver)
        after = driver.on(before, snapshot_layers(point), new_upper())
        return plan._replace(workspace=after._replace(branch=branch_of(plan.name)))

    def lease(self, plan: CapsulePlan) -> str:
        return payload_of(plan.workspace)

    def create(
        self, session: Session, capsule: CapsuleRecord, plan: CapsulePlan, *, lock: int
    ) -> None:
        registry.workspace_driver(plan.workspace.driver).apply(plan.workspace, lock=lock)
        if plan.workspace.is_layered:
            note_plan(capsule, plan.workspace)
        session.reach("new.workspace", capsule.name)

    @contextmanager
    def quiesce(self, session: Session, capsule: CapsuleRecord) -> Iterator[None]:
        """Only runs write here, which are frozen elsewhere. Notes the plan that was stored."""
        yield
        note_plan(capsule, workspace_plan(session, capsule))

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        plan = workspace_plan(session, capsule)
        if not busy:
            views.recover_unclean(session, capsule, plan)
        sealed = registry.layered_driver(plan.driver).seal(plan, busy=busy)
        return PartChange(json.dumps(sealed.layers), payload_of(sealed.plan))

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        plan = workspace_plan(session, capsule)
        driver = registry.layered_driver(plan.driver)
        views.recover_unclean(session, capsule, plan)
        sealed = driver.seal(plan, busy=False)
        session.reach("rollback.sealed", capsule.name)
        after = driver.on(plan, snapshot_layers(target), new_upper())
        driver.prepare(after)
        # Upkeep removes the upper layer that `seal` began, which nothing refers to.
        return PartChange(json.dumps(sealed.layers), payload_of(after))

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        del point
        plan = workspace_plan(session, made)
        driver = registry.layered_driver(plan.driver)
        driver.prepare(plan)
        session.reach("fork.prepared", made.name)
        note_plan(made, plan)
        views.note_use(made)
        driver.rename(plan, former=str(origin.branch))
        session.reach("fork.renamed", made.name)

    def remove(self, session: Session, capsule: CapsuleRecord, removal: Removal) -> None:
        plan = workspace_plan(session, capsule)
        # A branch that was never exported belongs to the owner.
        keep_branch = removal.keep_branch or (plan.is_layered and not capsule.exported)
        driver = registry.workspace_driver(plan.driver)
        driver.release(plan, home=session.home, keep_branch=keep_branch)
        session.reach("rm.workspace", capsule.name)

    def has_changed(self, session: Session, capsule: CapsuleRecord) -> bool:
        plan = require_layers(session, capsule)
        return not registry.layered_driver(plan.driver).is_untouched(plan)


def require_layers(session: Session, capsule: CapsuleRecord) -> WorkspacePlan:
    plan = workspace_plan(session, capsule)
    if not plan.is_layered:
        raise StateError(
            f"level `{capsule.level}` has no snapshots",
            hint="atoll new NAME --level sandbox",
        )
    return plan
