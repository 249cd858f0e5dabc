"""Fills in the shapes of promotions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.engine.promotion.promotions import PromotionReport
    from atoll.model.promotion import Approval, PromotionStep
    from atoll.model.shapes import (
        ApprovalShape,
        PromotionShape,
        PromotionStepShape,
    )


def approval(record: Approval) -> ApprovalShape:
    return {
        "capsule": record.capsule,
        "stage": record.stage,
        "tree": record.tree,
        "by": record.by,
        "at": record.at,
    }


def promotion_step(record: PromotionStep) -> PromotionStepShape:
    facts = record.facts
    return {
        "stage": record.stage,
        "act": str(record.act),
        "state": str(record.state),
        "at": record.at,
        "commit": facts.commit or None,
        "tree": facts.tree or None,
        "branch": facts.ref.removeprefix("refs/heads/") or None,
        "old": facts.old or None,
        "new": facts.new or None,
        "way": facts.way or None,
        "place": facts.place or None,
        "command": facts.command or None,
        "exit_code": facts.exit_code,
        "checks": [*facts.checks],
        "accepted": [*facts.kinds],
        "by": facts.by or None,
        "message": facts.message or None,
        "output": facts.output or None,
        "log": facts.log or None,
    }


def promotion(record: PromotionReport) -> PromotionShape:
    spec = record.promotion.spec
    return {
        "id": record.promotion.id,
        "capsule": record.promotion.capsule,
        "state": str(record.promotion.state),
        "to": spec.to,
        "stages": [*record.stages],
        "passed": [*record.passed_stages],
        "commit": spec.commit,
        "tree": spec.tree,
        "base": spec.base_commit,
        "agent": spec.agent or None,
        "created_at": record.promotion.created_at,
        "ended_at": record.promotion.ended_at,
        "reason": spec.reason or None,
        "hint": spec.hint or None,
        "exit_code": spec.exit_code,
        "steps": [promotion_step(step) for step in record.steps],
        "checks": [
            {
                "id": one.id,
                "name": one.name,
                "status": str(one.status),
                "tree": one.tree,
                "at": one.at,
            }
            for one in record.results
        ],
        "approvals": [approval(one) for one in record.approvals],
        "left": [*record.left],
    }
