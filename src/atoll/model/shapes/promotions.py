"""The JSON shapes of promotions."""

from __future__ import annotations

from typing import TypedDict


class PromotionStepShape(TypedDict):
    """One act of a promotion, as the journal has it."""

    stage: str
    act: str
    state: str
    at: float
    commit: str | None
    tree: str | None
    branch: str | None
    old: str | None
    new: str | None
    way: str | None
    place: str | None
    command: str | None
    exit_code: int | None
    checks: list[int]
    accepted: list[str]
    by: str | None
    message: str | None
    output: str | None
    log: str | None


class PromotionCheckShape(TypedDict):
    """A stored check result that proves a step."""

    id: int
    name: str
    status: str
    tree: str
    at: float


class ApprovalShape(TypedDict):
    capsule: str
    stage: str
    tree: str
    by: str
    at: float


class PromotionShape(TypedDict):
    """The way of one commit of a capsule through the stages."""

    id: int
    capsule: str
    state: str
    to: str
    stages: list[str]
    passed: list[str]
    commit: str
    tree: str
    base: str
    agent: str | None
    created_at: float
    ended_at: float | None
    reason: str | None
    hint: str | None
    exit_code: int
    steps: list[PromotionStepShape]
    checks: list[PromotionCheckShape]
    approvals: list[ApprovalShape]
    left: list[str]
