"""An attempt on a wall, and what came of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Control = Literal["plain", "root", "user", "lax", "machine"]
"""Where the same attempt gets through, so that one which cannot fail is never counted: as a
`plain` process of the host; as one of `root` or of an ordinary `user` only; in throw-away
namespaces with every privilege in them (`lax`); in such ones with root's own (`machine`)."""

Verdict = Literal["held", "gave way", "not tried"]


class WallTest(NamedTuple):
    """`code` is Python that runs inside, with the names of `inside.py`.

    Its end is the attempt's success. An OSError is a refusal, and so the wall has held; what only
    prepares the attempt stands in `with preparing():`. It also runs where nothing holds it, as
    root: it must do no harm when it gets through, and leave nothing.
    """

    id: str
    title: str
    code: str
    control: Control = "plain"


class Wall(NamedTuple):
    name: str
    attempts: tuple[WallTest, ...]


class WallFinding(NamedTuple):
    """What came of one attempt."""

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
