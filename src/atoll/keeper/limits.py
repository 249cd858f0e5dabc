"""What a run may use: held by the kernel where that can be, else looked at and ended."""

from __future__ import annotations

import os
import resource

from atoll.keeper import shares
from atoll.keeper.budget import Budget
from atoll.keeper.groups import Group
from atoll.keeper.process_limits import rlimits
from atoll.keeper.watchdog import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.keeper.members import Members
    from atoll.keeper.watchdog import Activity

_REASONS = {"memory": "oom", "inodes": "disk"}
_KILLED = 128 + 9
_TOO_LARGE = 25
"""SIGXFSZ."""
_SPARE_BYTES = 16 << 20


class Limits:
    """`raw`: `{"memory_bytes", "pids", "disk_bytes", "files", "idle_s", "output_bytes"}`, some or
    all, and `"upper"`, the directory that counts as the capsule's disk.
    """

    __slots__ = (
        "_is_fresh",
        "_is_measuring",
        "_output_bytes",
        "_said_at",
        "_told",
        "_watch",
        "activity",
        "budget",
        "group",
        "raw",
        "unmet",
    )

    def __init__(self, raw: Mapping[str, object], group: Mapping[str, str]) -> None:
        self.raw = raw
        self.group = Group(dict(group))
        held = {"memory_bytes": "memory", "pids": "pids"}
        self.unmet = {
            key: raw[key] for key, use in held.items() if raw.get(key) and use not in group
        }
        self._watch = Watch(self.unmet)
        self.activity: Activity | None = None
        disk, upper = raw.get("disk_bytes"), raw.get("upper")
        self.budget = Budget(str(upper), int(str(disk))) if disk and upper else None
        self._is_fresh = True
        self._is_measuring = False
        self._told = 0
        self._said_at = 0.0
        self._output_bytes = 0

    @property
    def needs_a_look(self) -> bool:
        return bool(self.unmet or self.budget or self.raw.get("idle_s"))

    def fork(self) -> int:
        """For a child that is going to `enter`."""
        return self.group.fork()

    def enter(self) -> None:
        """For the child, before it gives up its rights."""
        # Whoever started us may have a priority that groups do not take, and nobody inside needs.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        self.group.enter()
        kinds = rlimits(
            self.raw, memory_is_held="memory_bytes" not in self.unmet, in_user_namespace=True
        )
        for kind, value in (*kinds, *shares.resource_limits()):
            resource.setrlimit(kind, (value, value))

    def begin(self, now: float) -> None:
        """The run starts."""
        self._told = self._oom_kills()
        self._said_at = now

    def heard(self, count: int, now: float) -> str | None:
        """The run has said so much more; the reason to end it, if that is too much."""
        self._said_at = now
        self._output_bytes += count
        limit = self.raw.get("output_bytes")
        return "output" if limit and self._output_bytes > int(str(limit)) else None

    def look(self, members: Members, now: float) -> str | None:
        """The reason to end the run with these members; None when all is well."""
        if now > self.silence_ends_at:
            return "idle"
        pids, proc = members.list()
        found = self._watch.look(pids, proc)
        self.activity = self._watch.activity
        if found is None and self.budget is not None:
            found = self._look_at_disk(self.budget, now, pids, proc)
        return _REASONS.get(found, found) if found else None

    @property
    def silence_ends_at(self) -> float:
        """When the run is ended if it says nothing until then."""
        idle_s = self.raw.get("idle_s")
        return self._said_at + float(str(idle_s)) if idle_s else float("inf")

    @property
    def is_measuring(self) -> bool:
        """Whether the disk is being walked, a part at each look."""
        return self.budget is not None and (self._is_measuring or self.budget.is_walking)

    def marks(self) -> tuple[int, int]:
        """Resident pages and tasks up to which a run that seems idle needs no look: a quarter of
        the way from the last look to the limit.
        """
        return self._watch.marks()

    def _look_at_disk(self, budget: Budget, now: float, pids: list[int], proc: str) -> str | None:
        try:
            found = budget.look(now, pids, proc, self.activity)
        except OSError:  # the capsule is being removed
            return None
        upper = str(self.raw["upper"])
        if self._is_measuring:
            if budget.used_bytes:
                self._is_measuring = False
                self.budget = Budget(upper, budget.used_bytes + _SPARE_BYTES)
            return None
        if found is not None and self._is_fresh:
            # It was too much before: whoever comes to tidy up must be let, as long as it is not
            # getting more than that.
            self._is_measuring = True
            self.budget = Budget(upper, None)
            found = None
        self._is_fresh = False
        return found

    def judge(self, exit_code: int | None, signal_number: int | None) -> str | None:
        """Why the kernel has ended the run, if it was for a limit."""
        if signal_number == _TOO_LARGE or exit_code == 128 + _TOO_LARGE:
            # A single file of more than all files may have together.
            return "disk" if self.raw.get("disk_bytes") else None
        was_killed = signal_number == 9 or exit_code == _KILLED
        return "oom" if was_killed and self._oom_kills() > self._told else None

    def tell_kills(self) -> str | None:
        """What the kernel killed for want of memory since the start, for who went on without it.

        The group is that of all runs, so it may have been another one's.
        """
        count = self._oom_kills() - self._told
        if count <= 0:
            return None
        what = "a process" if count == 1 else f"{count} processes"
        return f"the capsule reached its memory limit meanwhile, and the kernel killed {what} in it"

    def _oom_kills(self) -> int:
        return self.group.oom_kills() or 0


def find_limits(raw: object, group: Mapping[str, str]) -> Limits | None:
    return Limits(raw, group) if isinstance(raw, dict) else None
