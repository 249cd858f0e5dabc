"""The limits of a run: enforced by the kernel where possible, else watched."""

from __future__ import annotations

import os
import resource

from atoll.keeper import user_quotas
from atoll.keeper.disk_budget import DiskBudget
from atoll.keeper.groups import Group
from atoll.keeper.rlimits import rlimits
from atoll.keeper.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.keeper.run_processes import Members
    from atoll.keeper.watchdog import Activity
    from atoll.model.enclosure import Limits

_REASONS = {"memory": "oom", "inodes": "disk"}
_KILLED = 128 + 9
_TOO_LARGE = 25
"""SIGXFSZ."""
_SPARE_BYTES = 16 << 20


class RunLimits:
    """Enforces or watches the limits of one run."""

    __slots__ = (
        "_is_fresh",
        "_is_measuring",
        "_oom_kills_before",
        "_output_bytes",
        "_said_at",
        "_watch",
        "activity",
        "budget",
        "group",
        "limits",
        "unmet",
    )

    def __init__(self, limits: Limits, group: Mapping[str, str]) -> None:
        self.limits = limits
        self.group = Group(dict(group))
        self.unmet = limits.watched_without(group)
        self._watch = Watchdog(self.unmet)
        self.activity: Activity | None = None
        disk, root = limits.disk_bytes, limits.disk_root
        self.budget = DiskBudget(root, disk) if disk and root else None
        self._is_fresh = True
        self._is_measuring = False
        self._oom_kills_before = 0
        self._said_at = 0.0
        self._output_bytes = 0

    @property
    def needs_check(self) -> bool:
        return bool(self.unmet or self.budget or self.limits.idle_s)

    def fork(self) -> int:
        """For a child that is going to `enter`."""
        return self.group.fork()

    def enter(self) -> None:
        """For the child, before it drops its privileges."""
        # Our parent may have a scheduling policy that cgroups do not accept.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        self.group.enter()
        kinds = rlimits(
            self.limits,
            memory_is_held=self.unmet.memory_bytes is None,
            in_user_namespace=True,
        )
        for kind, value in (*kinds, *user_quotas.resource_limits()):
            resource.setrlimit(kind, (value, value))

    def begin(self, now: float) -> None:
        """The run starts."""
        self._oom_kills_before = self._oom_kills()
        self._said_at = now

    def count_output(self, count: int, now: float) -> str | None:
        """Counts new output of the run; returns the reason to end it, if it is too much."""
        self._said_at = now
        self._output_bytes += count
        limit = self.limits.output_bytes
        return "output" if limit and self._output_bytes > limit else None

    def check(self, members: Members, now: float) -> str | None:
        """The reason to end the run with these members; None when all is well."""
        if now > self.silence_ends_at:
            return "idle"
        pids, proc = members.list()
        found = self._watch.check(pids, proc)
        self.activity = self._watch.activity
        if found is None and self.budget is not None:
            found = self._check_disk(self.budget, now, pids, proc)
        return _REASONS.get(found, found) if found else None

    @property
    def silence_ends_at(self) -> float:
        """When the run is ended if it produces no output until then."""
        idle_s = self.limits.idle_s
        return self._said_at + idle_s if idle_s else float("inf")

    @property
    def is_measuring(self) -> bool:
        """Whether the disk is being walked, a part at each check."""
        return self.budget is not None and (self._is_measuring or self.budget.is_walking)

    def marks(self) -> tuple[int, int]:
        """Resident pages and tasks up to which an idle run needs no check: a quarter of the way
        from the last check to the limit.
        """
        return self._watch.marks()

    def _check_disk(self, budget: DiskBudget, now: float, pids: list[int], proc: str) -> str | None:
        try:
            found = budget.check(now, pids, proc, self.activity)
        except OSError:  # the capsule is being removed
            return None
        root = self.limits.disk_root
        if self._is_measuring:
            if budget.used_bytes:
                self._is_measuring = False
                self.budget = DiskBudget(root, budget.used_bytes + _SPARE_BYTES)
            return None
        if found is not None and self._is_fresh:
            # The limit was exceeded before this run: it may free space, as long as usage does not
            # grow.
            self._is_measuring = True
            self.budget = DiskBudget(root, None)
            found = None
        self._is_fresh = False
        return found

    def judge(self, exit_code: int | None, signal_number: int | None) -> str | None:
        """Why the kernel has ended the run, if it was for a limit."""
        if signal_number == _TOO_LARGE or exit_code == 128 + _TOO_LARGE:
            # A single file of more than all files may have together.
            return "disk" if self.limits.disk_bytes else None
        was_killed = signal_number == 9 or exit_code == _KILLED
        return "oom" if was_killed and self._oom_kills() > self._oom_kills_before else None

    def describe_kills(self) -> str | None:
        """How many processes the OOM killer has ended since the start, for a run that continued.

        The cgroup is shared by all runs of the capsule: another run may be concerned.
        """
        count = self._oom_kills() - self._oom_kills_before
        if count <= 0:
            return None
        what = "a process" if count == 1 else f"{count} processes"
        return f"the capsule reached its memory limit meanwhile, and the kernel killed {what} in it"

    def _oom_kills(self) -> int:
        return self.group.oom_kills() or 0
