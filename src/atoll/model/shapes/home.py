"""The JSON shapes of what belongs to no single capsule."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class LayerShape(TypedDict):
    id: str
    kind: str
    about: str
    files: int
    bytes: int


class CheckedLayerShape(LayerShape):
    damaged: list[str]
    users: list[str]


class LeftOutShape(TypedDict):
    path: str
    reason: str


class BaseShape(TypedDict):
    disk_bytes: int
    layers: list[LayerShape]
    left_out: list[LeftOutShape]
    tracked_secrets: list[LeftOutShape]


class ServedCapsuleShape(TypedDict):
    name: str
    directory: str
    problems: dict[str, str]


class DaemonStatusShape(TypedDict):
    pid: int
    since: float
    capsules: list[ServedCapsuleShape]
    watched: dict[str, int]
    freezing: bool
    version: NotRequired[str]


class StoppedDaemonShape(TypedDict):
    running: Literal[False]


class DaemonShape(DaemonStatusShape):
    running: bool


class DaemonLogShape(TypedDict):
    line: str


class RuleShape(TypedDict):
    rule: str
    source: str
    means: list[str]


class SettingShape(TypedDict):
    key: str
    value: object
    source: str


class ClaimShape(TypedDict):
    key: str
    text: str


class TrustShape(TypedDict):
    path: str
    digest: str
    claims: list[ClaimShape]


class UntrustShape(TypedDict):
    was_trusted: bool


class InitShape(TypedDict):
    path: str
    text: str
    written: bool


class CompletionShape(TypedDict):
    shell: str
    script: str


class SecretGrantShape(TypedDict):
    capsule: str
    granted_at: float
    expires_at: float | None
    expired: bool
    used_at: float | None


class SecretShape(TypedDict):
    """A secret of a project: never its value."""

    name: str
    state: str
    origin: str | None
    form: str | None
    hosts: list[str]
    allow: list[str]
    deny: list[str]
    repository: str | None
    upstream: str | None
    ttl_s: float | None
    created_at: float | None
    rotated_at: float | None
    used_at: float | None
    ends_at_once: bool
    grants: list[SecretGrantShape]


class SecretAuditShape(TypedDict):
    at: float
    secret: str
    capsule: str | None
    act: str
    detail: str


class VaultShape(TypedDict):
    passphrase: bool


class ErrorShape(TypedDict):
    type: str
    message: str
    hint: str | None
    exit_code: int
    mistakes: list[str]


class FindingShape(TypedDict):
    name: str
    good: bool
    needed: bool
    detail: str
    cure: str | None
    took_s: float


class LevelShape(TypedDict):
    name: str
    default: bool
    isolates: str
    shares: str
    cost: str
    here: bool
    problems: list[str]


class WallFindingShape(TypedDict):
    wall: str
    id: str
    title: str
    verdict: str
    detail: str


class WallReportShape(TypedDict):
    capsule: str
    level: str
    held: bool
    took_s: float
    attempts: list[WallFindingShape]


class CollectedShape(TypedDict):
    capsules: list[str]
    runs: list[str]
    files: list[str]
    recovered: list[str]
    restored: list[str]
