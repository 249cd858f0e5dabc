"""The journal of promotions: what is promoted, each act, and who has approved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from atoll.engine.state.database import DamagedError, Database
from atoll.model.promotion import (
    Approval,
    Promotion,
    PromotionSpec,
    PromotionState,
    PromotionStep,
    StepAct,
    StepFacts,
    StepState,
    parse_facts,
    parse_spec,
)


class PromotionRows(Database):
    """Part of the store."""

    def add_promotion(self, project_id: str, capsule: str, spec: PromotionSpec) -> Promotion:
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO promotions (project_id, capsule, state, created_at, payload) "
                "VALUES (?, ?, ?, ?, ?)",
                (project_id, capsule, PromotionState.RUNNING, now, spec.encode()),
            )
            number = cursor.lastrowid
        return Promotion(number or 0, project_id, capsule, PromotionState.RUNNING, now, None, spec)

    def set_promotion(self, promotion: Promotion) -> None:
        """Stores its state, its end and its spec."""
        with self._write() as db:
            db.execute(
                "UPDATE promotions SET state = ?, ended_at = ?, payload = ? WHERE id = ?",
                (promotion.state, promotion.ended_at, promotion.spec.encode(), promotion.id),
            )

    def promotions(self, project_id: str, capsule: str | None = None) -> list[Promotion]:
        """The newest first."""
        rows = self._rows(
            "SELECT * FROM promotions WHERE project_id = ? AND (? IS NULL OR capsule = ?) "
            "ORDER BY id DESC",
            project_id, capsule, capsule,
        )  # fmt: skip
        return [_promotion(dict(row)) for row in rows]

    def add_promotion_step(
        self, promotion_id: int, stage: str, act: StepAct, state: StepState, facts: StepFacts
    ) -> PromotionStep:
        now = time.time()
        with self._write() as db:
            found = db.execute(
                "SELECT coalesce(max(position), 0) + 1 FROM promotion_steps WHERE promotion_id = ?",
                (promotion_id,),
            ).fetchone()
            db.execute(
                "INSERT INTO promotion_steps VALUES (?, ?, ?, ?, ?, ?, ?)",
                (promotion_id, found[0], stage, act, state, now, facts.encode()),
            )
        return PromotionStep(promotion_id, found[0], stage, act, state, now, facts)

    def set_promotion_step(self, step: PromotionStep) -> None:
        """Stores its state and its facts; it keeps the time at which it was started."""
        with self._write() as db:
            db.execute(
                "UPDATE promotion_steps SET state = ?, payload = ? "
                "WHERE promotion_id = ? AND position = ?",
                (step.state, step.facts.encode(), step.promotion_id, step.position),
            )

    def promotion_steps(self, promotion_id: int) -> list[PromotionStep]:
        """In the order in which they were started."""
        rows = self._rows(
            "SELECT * FROM promotion_steps WHERE promotion_id = ? ORDER BY position", promotion_id
        )
        return [_step(dict(row)) for row in rows]

    def add_approval(
        self, project_id: str, capsule: str, stage: str, tree: str, by: str
    ) -> Approval:
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO approvals (project_id, capsule, stage, tree, by, at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (project_id, capsule, stage, tree, by, now),
            )
            number = cursor.lastrowid
        return Approval(number or 0, project_id, capsule, stage, tree, by, now)

    def approvals(self, project_id: str, capsule: str) -> list[Approval]:
        """The oldest first."""
        rows = self._rows(
            "SELECT * FROM approvals WHERE project_id = ? AND capsule = ? ORDER BY id",
            project_id, capsule,
        )  # fmt: skip
        return [Approval(**dict(row)) for row in rows]


def _promotion(row: Mapping[str, Any]) -> Promotion:
    columns = {key: value for key, value in row.items() if key not in ("payload", "state")}
    try:
        state = PromotionState(row["state"])
        return Promotion(**columns, state=state, spec=parse_spec(row["payload"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"the database holds a damaged record: {error}") from error


def _step(row: Mapping[str, Any]) -> PromotionStep:
    try:
        return PromotionStep(
            promotion_id=row["promotion_id"],
            position=row["position"],
            stage=row["stage"],
            act=StepAct(row["act"]),
            state=StepState(row["state"]),
            at=row["at"],
            facts=parse_facts(row["payload"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"the database holds a damaged record: {error}") from error
