"""What a keeper answers to whoever wants its run held still."""

from __future__ import annotations

CGROUP = "cgroup"
PTRACE = "ptrace"
NOTHING = "nothing"
UNVERIFIED = "unverified"
ENDING = "ending"
"""Of a run that is being ended: ask again, or wait for its end."""


class Answer:
    """How a run is held, and if it is not, why."""

    __slots__ = ("how", "processes", "reason")

    def __init__(self, how: str, reason: str = "", processes: int = 0) -> None:
        self.how = how
        self.reason = reason
        self.processes = processes

    def render(self) -> dict[str, object]:
        """As it stands in a `HELD` frame."""
        return {"how": self.how, "reason": self.reason, "processes": self.processes}
