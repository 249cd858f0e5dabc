"""Canonical ports: the project's own numbers on the host's loopback, for one capsule at a time.

Law: all that were asked for or none; a port that changes hands never stops listening; a stranger's
port is never taken and never replaced by another number.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Mapping

from atoll.daemon.ports.doors import Door, Guests
from atoll.daemon.ports.targets import Target
from atoll.host.listening import Occupant, find_occupants
from atoll.model.errors import AtollError, PrerequisiteError, StateError

_COMMAND_BYTES = 1 << 14
_DAEMON = b"from atoll.daemon.main import main"
_HOME_WORD = 4
"""Where the home stands in the command line of a daemon, after its program."""
_LOW_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


class Checkouts:
    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._doors: dict[int, Door] = {}
        self._owners: dict[int, str] = {}
        self._missing: dict[str, dict[int, OSError]] = {}

    def owner(self, port: int) -> str | None:
        """The project that has it."""
        return self._owners.get(port)

    def missing(self, project_id: str) -> dict[int, OSError]:
        """The ports that are due to the project and that somebody else has."""
        return self._missing.get(project_id, {})

    def open_missing(
        self, project_id: str, wanted: Mapping[int, Target]
    ) -> tuple[list[Door], dict[int, OSError]]:
        """Opens what the project does not have yet: the doors, and what could not be opened."""
        opened: list[Door] = []
        failures: dict[int, OSError] = {}
        for port, target in wanted.items():
            if self._owners.get(port) == project_id:
                continue
            try:
                opened.append(Door(port, target, self._guests, both=True))
            except OSError as error:
                failures[port] = error
        return opened, failures

    def settle(
        self,
        project_id: str,
        wanted: Mapping[int, Target],
        opened: list[Door],
        failures: dict[int, OSError],
    ) -> None:
        """From here on the project's ports are these: new ones, moved ones, and no others."""
        for door in opened:
            self._doors[door.port] = door
            self._owners[door.port] = project_id
        for port in [port for port, owner in self._owners.items() if owner == project_id]:
            if port in wanted:
                self._doors[port].target = wanted[port]
            else:
                self._doors.pop(port).close()
                del self._owners[port]
        self._missing[project_id] = failures

    def tend(self, project_id: str, wanted: Mapping[int, Target]) -> None:
        """Takes what has become due and can be had, gives back what is no longer."""
        self.settle(project_id, wanted, *self.open_missing(project_id, wanted))

    def release(self, project_id: str) -> None:
        self.settle(project_id, {}, [], {})
        del self._missing[project_id]

    def projects(self) -> set[str]:
        return set(self._missing)

    def close(self) -> None:
        for project_id in self.projects():
            self.release(project_id)


def explain(port: int, error: OSError) -> tuple[str, str]:
    """Why a port cannot be had, and what cures it."""
    try:
        return _explain(port, error)
    except OSError as trouble:
        # No descriptor is left to find out more.
        why = f"{error.strerror} ({trouble.strerror})"
        return f"port {port} cannot be had: {why}", f"ss -tanp 'sport = :{port}'"


def _explain(port: int, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EACCES:
        with open(_LOW_PORTS, encoding="ascii") as stream:
            first = stream.read().strip()
        cure = f"sudo sysctl -w net.ipv4.ip_unprivileged_port_start={port}"
        return f"port {port} is root's, as all below {first} are", cure
    if error.errno != errno.EADDRINUSE:
        return f"port {port} cannot be had: {error.strerror}", "atoll ports"
    occupants = find_occupants(port)
    if any(occupant.pid == os.getpid() for occupant in occupants):
        return f"port {port} is in use by Atoll itself, for its router or a lease", "atoll ports"
    if not occupants:
        return f"port {port} is in use, though nobody listens on it", f"ss -tanp 'sport = :{port}'"
    told = " and ".join(occupant.render() for occupant in occupants)
    if homes := sorted({home for home in map(_find_home, occupants) if home is not None}):
        text = f"port {port} is taken by Atoll with the home {' and '.join(map(repr, homes))}"
        return text, "; ".join(
            f"ATOLL_HOME={shlex.quote(home)} atoll checkout --none" for home in homes
        )
    pids = sorted({str(occupant.pid) for occupant in occupants if occupant.pid is not None})
    cure = f"kill {' '.join(pids)}" if pids else f"sudo ss -tlnp 'sport = :{port}'"
    return f"port {port} is taken by {told}", cure


def _find_home(occupant: Occupant) -> str | None:
    """The home that a process serves if it is a daemon of Atoll, of ours and not in a capsule."""
    if occupant.pid is None:
        return None
    try:
        if os.stat(f"/proc/{occupant.pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino:
            return None
        with open(f"/proc/{occupant.pid}/cmdline", "rb") as stream:
            words = stream.read(_COMMAND_BYTES).split(b"\0")
    except OSError:
        return None
    # As `atoll.engine.daemons` starts it.
    is_daemon = len(words) > _HOME_WORD and _DAEMON in words[_HOME_WORD - 1]
    return os.fsdecode(words[_HOME_WORD]) if is_daemon else None


def refusal(reasons: Mapping[int, tuple[str, str]], *, again: str, is_root: bool) -> AtollError:
    """One error for all ports that could not be had."""
    texts = [text for text, _ in reasons.values()]
    cures = list(dict.fromkeys(cure for _, cure in reasons.values()))
    kind = PrerequisiteError if is_root else StateError
    return kind(
        "; ".join(texts) + "; nothing was changed", hint=f"{'; '.join(cures)}, then: {again}"
    )
