"""What the acts of a race need to know, and what they may do to capsules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from atoll.engine.agent.agents import Agent
from atoll.engine.agent.turns import Start
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.model.check import CheckSpec
from atoll.model.race import Candidate, Race
from atoll.model.state import CapsuleRecord, CapsuleState, ProjectRecord, RecoveryPoint

START_VARIABLE = "ATOLL_RACE_START"
"""In a candidate's capsule: for which start of which candidate it was made."""


class CapsuleActs(Protocol):
    """What `Capsule` can do, for packages below it."""

    def starter(self, capsule: CapsuleRecord) -> Start:
        """Starts a run with the secrets of the capsule."""

    def stop(self, capsule: CapsuleRecord) -> None:
        """Ends every run."""

    def remove(
        self, capsules: Sequence[CapsuleRecord], *, force: bool
    ) -> list[RecoveryPoint | None]:
        """Removes them as `rm` does: without `force` all of them, or none."""

    def promote(
        self,
        capsule: CapsuleRecord,
        *,
        to: str,
        checks: Sequence[CheckSpec],
        accept: Sequence[str],
    ) -> tuple[bool, str]:
        """Promotes its work to a stage without asking anything: whether it is there, and why not.
        `checks` have to pass besides those of the project; `accept` has kinds of risky files.

        May be called again after an interrupt.
        """


class Field(NamedTuple):
    """One race as it is carried on or looked at."""

    session: Session
    project: ProjectRecord
    race: Race
    acts: CapsuleActs

    def save(self, candidate: Candidate, *, durable: bool = True) -> Candidate:
        self.session.store.set_candidate(candidate, durable=durable)
        return candidate

    def reach(self, step: str, candidate: Candidate) -> None:
        self.session.reach(f"race.{step}", candidate.name)

    def agent(self, capsule: CapsuleRecord) -> Agent:
        return Agent(self.session, capsule, self.acts.starter(capsule))

    def find_capsule(self, candidate: Candidate) -> CapsuleRecord | None:
        """The capsule that was made for a candidate, if it is there and whole: not another one
        that has its name.
        """
        found = self.session.store.find_capsule(self.project.id, candidate.name)
        if found is None or found.state is not CapsuleState.READY:
            return None
        return found if self.attempt_of(candidate, found) else None

    def attempt_of(self, candidate: Candidate, capsule: CapsuleRecord) -> int:
        """For which of its attempts a capsule was made; 0 for one that is not its own."""
        said = isolation_plan(self.session, capsule).variables.get(START_VARIABLE, "")
        mine, _, attempt = said.rpartition(".")
        if mine != f"{candidate.race_id}.{candidate.position}" or not attempt.isdecimal():
            return 0
        return int(attempt)

    def variables(self, candidate: Candidate) -> dict[str, str]:
        """What the environment of its capsule has beyond that of others."""
        start = f"{candidate.race_id}.{candidate.position}.{candidate.attempts}"
        return {
            **candidate.spec.env,
            "ATOLL_RACE": self.race.name,
            START_VARIABLE: start,
        }
