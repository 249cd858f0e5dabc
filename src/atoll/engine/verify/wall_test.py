"""An attempt on a wall, and its result."""

from __future__ import annotations

from typing import Literal, NamedTuple

Control = Literal["plain", "root", "user", "lax", "machine"]
"""Where the same attempt succeeds, which proves that it can: as a `plain` process of the host; as
one of `root` or of an ordinary `user` only; in temporary namespaces with all privileges (`lax`); in
such ones of root (`machine`)."""

Verdict = Literal["held", "gave way", "not tried"]


class WallTest(NamedTuple):
    """`code` is Python that runs inside, with the names of `inside.py`.

    If it ends normally, the attempt has succeeded. An OSError means that it was blocked;
    preparations are inside `with preparing():`. It also runs without isolation, as root: it must do
    no harm when it succeeds, and leave nothing.
    """

    id: str
    title: str
    code: str
    control: Control = "plain"


class Wall(NamedTuple):
    name: str
    attempts: tuple[WallTest, ...]


class WallFinding(NamedTuple):
    """The result of one attempt."""

    wall: str
    id: str
    title: str
    verdict: Verdict
    detail: str


class WallReport(NamedTuple):
    capsule: str
    level: str
    findings: tuple[WallFinding, ...]
    took_s: float
    walls: tuple[str, ...] = ()
    """The names of the walls that were attacked, in order."""

    def of(self, wall: str, verdict: Verdict) -> list[WallFinding]:
        return [f for f in self.findings if (f.wall, f.verdict) == (wall, verdict)]

    @property
    def breaches(self) -> list[WallFinding]:
        return [finding for finding in self.findings if finding.verdict == "gave way"]
