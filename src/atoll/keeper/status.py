"""What the keeper observed: `status.json`, always whole, replaced in one step.

Space for the final status is reserved at the start, so that a disk which the run itself has
filled cannot keep its outcome from being written.
"""

from __future__ import annotations

import json
import os

from atoll.keeper.handles import Opened

STATUS = "status.json"
ERRORS = "keeper.err"

_SPARE = "status.spare"
_NEXT = "status.new"
_RESERVE_BYTES = 16 * 1024
_ERRORS_LIMIT_BYTES = 64 * 1024
_MESSAGE_LIMIT = 2000

REASONS = (
    "exited", "signalled", "timeout", "stopped", "hangup", "not-started", "no-walls", "lost",
    "output", "idle", "oom", "pids", "disk",
)  # fmt: skip


class RunStatus:
    """One run as observed: `state` is `running` or `ended`, `reason` is one of REASONS.

    `keeper` and `guard` are (pid, start time in clock ticks): process ids are used again.
    `exit_code` is 127 for a command not found, 126 for one that cannot be started and 6 when its
    walls could not be built.
    """

    __slots__ = (
        "cpu_s",
        "ended_at",
        "exit_code",
        "guard",
        "keeper",
        "leftover",
        "max_rss_bytes",
        "message",
        "pid",
        "reason",
        "signal",
        "started_at",
        "state",
        "taken_ports",
    )

    def __init__(self, *, keeper: tuple[int, int] | None, guard: tuple[int, int] | None) -> None:
        self.state = "running"
        self.reason: str | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.message: str | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.cpu_s = 0.0
        self.max_rss_bytes = 0
        self.leftover = 0
        self.taken_ports: list[int] = []
        self.keeper = keeper
        self.guard = guard

    def note(self, message: str) -> None:
        """Append to the message."""
        joined = message if self.message is None else f"{self.message}; {message}"
        self.message = joined[:_MESSAGE_LIMIT]

    def render(self) -> dict[str, object]:
        """As in `status.json` and in the `ENDED` frame."""
        return {
            "state": self.state,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "message": self.message,
            "pid": self.pid,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "cpu_s": round(self.cpu_s, 6),
            "max_rss_bytes": self.max_rss_bytes,
            "leftover": self.leftover,
            "taken_ports": self.taken_ports,
            "keeper": _render_process(self.keeper),
            "guard": _render_process(self.guard),
        }


def parse_status(raw: object) -> RunStatus:
    """ValueError if `raw` is not what `Status.render` gives."""
    if not isinstance(raw, dict) or raw.get("state") not in ("running", "ended"):
        raise ValueError("not the status of a run")
    status = RunStatus(
        keeper=_parse_process(raw.get("keeper")), guard=_parse_process(raw.get("guard"))
    )
    for key in RunStatus.__slots__:
        if key not in ("keeper", "guard"):
            if key not in raw:
                raise ValueError(f"the status of a run lacks `{key}`")
            setattr(status, key, raw[key])
    return status


def load_status(run_dir: str | os.PathLike[str]) -> RunStatus | None:
    """None before the command was started; ValueError if the file is not a status."""
    try:
        with open(os.path.join(run_dir, STATUS), "rb") as file:
            return parse_status(json.loads(file.read()))
    except FileNotFoundError:
        return None


def write_status(run_dir: str, status: RunStatus, *, is_durable: bool = False) -> None:
    """Replace `status.json`; OSError if it cannot be done.

    Durable only where no client waits: a machine that goes down ends the run in any case, and
    the client that waits records the end.
    """
    content = json.dumps(status.render()).encode("ascii") + b"\n"
    spare = os.path.join(run_dir, _SPARE)
    path = spare
    if status.state == "ended":
        # Blanks up to what was set aside: to give blocks back would cost more than to keep them.
        content = content.ljust(_RESERVE_BYTES)
    else:
        path = os.path.join(run_dir, _NEXT)
    with Opened(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
        written = 0
        while written < len(content):
            written += os.pwrite(fd, content[written:], written)
        if is_durable:
            os.fsync(fd)
    os.replace(path, os.path.join(run_dir, STATUS))


def reserve_status(run_dir: str) -> None:
    """Reserve space for the final `write_status`, unless the disk is full already."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(os.path.join(run_dir, _SPARE), flags, 0o600)
    except OSError:
        return
    try:
        os.posix_fallocate(fd, 0, _RESERVE_BYTES)
    except OSError:
        return
    finally:
        os.close(fd)


def record_error(run_dir: str, text: str) -> None:
    """Record an error of the keeper itself. It is exiting anyway, so this never raises."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(os.path.join(run_dir, ERRORS), flags, 0o600)
    except OSError:
        return
    try:
        os.write(fd, text.encode("utf-8", "backslashreplace")[-_ERRORS_LIMIT_BYTES:])
    except OSError:
        return
    finally:
        os.close(fd)


def find_error(run_dir: str) -> str | None:
    """The last line of what `record_error` kept."""
    try:
        with open(os.path.join(run_dir, ERRORS), "rb") as file:
            lines = file.read(_ERRORS_LIMIT_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def _render_process(process: tuple[int, int] | None) -> dict[str, int] | None:
    return None if process is None else {"pid": process[0], "starttime": process[1]}


def _parse_process(raw: object) -> tuple[int, int] | None:
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise ValueError("the status of a run names a process wrongly")  # noqa: TRY004  one error for a bad file
    return int(raw["pid"]), int(raw["starttime"])
