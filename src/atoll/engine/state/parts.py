"""The contract for the parts of a capsule: workspace, private home, browser profile and so on.

A part stores one payload for the capsule as it is now and one per snapshot, in the table `parts`;
only the part itself reads them. Payloads of all parts change in one transaction with the snapshot
that they belong to. `atoll.engine.capsule.parts` lists the parts in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from atoll.engine.state.session import Session
from atoll.model.enclosure import Enclosure
from atoll.model.plan import CapsulePlan, Removal
from atoll.model.state import CapsuleRecord, PartChange, Run, Snapshot


class Part:
    """One part of a capsule. The default of every method suits a part that has nothing to do.

    The capsule's lock is held during the calls that change the part, from `create` to `sweep`. A
    process can be killed at any point: whatever no stored payload refers to must be found by
    `sweep`, and `remove` must be repeatable.
    """

    name: str
    """Unique; the `part` column of its rows."""

    # Before the capsule exists

    def plan_fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, plan: CapsulePlan
    ) -> CapsulePlan:
        """The plan of a new capsule, changed to start from `point` of `origin`."""
        del session, origin, point
        return plan

    def lease(self, plan: CapsulePlan) -> str:
        """The payload that is stored with a new capsule before anything is made; empty: none."""
        del plan
        return ""

    # Changes

    def create(
        self, session: Session, capsule: CapsuleRecord, plan: CapsulePlan, *, lock: int
    ) -> None:
        """Makes the part of a new capsule, whose rows are already stored. `lock` is the descriptor
        of the capsule's lock, for programs that must hold it.
        """

    def stop(self, session: Session, capsule: CapsuleRecord) -> None:
        """Ends what uses the part, before a rollback or a removal. Runs are stopped elsewhere."""

    def quiesce(self, session: Session, capsule: CapsuleRecord) -> AbstractContextManager[None]:
        """Suspends writes to the part during a snapshot or a rollback, until the payloads are
        stored. Runs are frozen elsewhere.
        """
        del session, capsule
        return nullcontext()

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        """Stores the present state. `busy`: there are runs, which are frozen meanwhile."""
        del busy
        return PartChange(current=session.store.part(capsule, self.name))

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        """Stores the present state and prepares that of `target`. No process uses the part."""
        del target
        return PartChange(current=session.store.part(capsule, self.name))

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        """Gives the new capsule `made` its own copy of what `point` of `origin` holds."""

    def remove(self, session: Session, capsule: CapsuleRecord, removal: Removal) -> None:
        """Removes what is outside of the capsule's directory, which is removed afterwards."""

    def sweep(
        self, session: Session, capsule: CapsuleRecord, *, dry_run: bool = False
    ) -> list[str]:
        """Removes what no stored payload refers to, such as the leftovers of a killed command;
        returns what was found.
        """
        del session, capsule, dry_run
        return []

    # What others need to know of the part

    def has_changed(self, session: Session, capsule: CapsuleRecord) -> bool:
        """Whether it may differ from the last snapshot, or from the new capsule without one."""
        del session, capsule
        return False

    def warnings(self, session: Session, capsule: CapsuleRecord) -> Sequence[str]:
        """What a snapshot that is taken now may lack."""
        del session, capsule
        return ()

    def variables(
        self, session: Session, capsule: CapsuleRecord, inside: Enclosure
    ) -> Mapping[str, str]:
        """Environment variables for every process of the capsule."""
        del session, capsule, inside
        return {}

    def end_run(self, session: Session, capsule: CapsuleRecord, run: Run) -> None:
        """Ends a run that belongs to the part in an orderly way, before it is stopped."""

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        """Facts about the part by name; empty when the capsule does not have it."""
        del session, capsule
        return {}
