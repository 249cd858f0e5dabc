"""Canonical ports: a project's own port numbers on the host's loopback, for one capsule at a time.

They are the declared ports and those that the owner names, never a port only because something in
the capsule listens on it. A checkout opens all of them or none; a port that changes hands never
stops listening; a port of another program is neither taken nor replaced by another number.

Well-known ports are opened only if the owner names them: programs trust what answers there, and the
service that belongs there fails to start while the port is in use.
"""

from __future__ import annotations

import errno
import functools
import os
import shlex
from collections.abc import Collection, Mapping
from typing import NamedTuple

from atoll.daemon.ports.host_listeners import PortConnections, PortForward
from atoll.daemon.ports.published_capsule import StoreCache, declared, has_own_network
from atoll.daemon.ports.targets import Target
from atoll.engine.network.ports import FIRST, LAST
from atoll.host.listening_sockets import Occupant, find_occupants
from atoll.keeper.networks import LOW_PORTS
from atoll.model.errors import AtollError, PrerequisiteError, SpecError, StateError
from atoll.model.state import CapsuleRecord

_PRIVILEGED_BELOW = 1024
_COMMAND_BYTES = 1 << 14
_DAEMON = b"from atoll.daemon.main import main"
_HOME_WORD = 4
"""The position of the home in the command line of a daemon."""

WELL_KNOWN = {
    22: "SSH",
    25: "SMTP",
    53: "DNS",
    111: "rpcbind",
    389: "LDAP",
    631: "CUPS",
    1080: "SOCKS proxy",
    1433: "SQL Server",
    1521: "Oracle",
    1883: "MQTT",
    2049: "NFS",
    2181: "ZooKeeper",
    2375: "Docker",
    2376: "Docker",
    2379: "etcd",
    2380: "etcd",
    3128: "HTTP proxy",
    3306: "MySQL",
    3389: "RDP",
    5037: "adb",
    5353: "mDNS",
    5432: "PostgreSQL",
    5433: "PostgreSQL",
    5672: "RabbitMQ",
    5900: "VNC",
    5984: "CouchDB",
    6379: "Redis",
    6443: "Kubernetes",
    7687: "Neo4j",
    8500: "Consul",
    9042: "Cassandra",
    9092: "Kafka",
    9200: "Elasticsearch",
    9222: "browser debugging",
    9229: "Node.js debugging",
    9300: "Elasticsearch",
    10250: "Kubernetes",
    11211: "memcached",
    11434: "Ollama",
    15672: "RabbitMQ",
    27017: "MongoDB",
    27018: "MongoDB",
    27019: "MongoDB",
}
"""Services that programs of the host commonly look for on the loopback."""


@functools.cache
def first_unprivileged() -> int:
    """Read once. The kernel's limit can also be lower than 1024; that changes nothing here."""
    try:
        return max(_PRIVILEGED_BELOW, _first_port())
    except (OSError, ValueError):
        return _PRIVILEGED_BELOW


def may_bind(port: int, user_id: int) -> bool:
    """Whether the kernel lets this user listen on a free port. Not cached: sysctl can change it."""
    if user_id == 0:
        return True
    try:
        return port >= _first_port()
    except (OSError, ValueError):
        return port >= _PRIVILEGED_BELOW


def _first_port() -> int:
    with open(LOW_PORTS, encoding="ascii") as stream:
        return int(stream.read())


def find_reason(port: int) -> str | None:
    """Why the owner has to name the port; None for an ordinary one."""
    if service := WELL_KNOWN.get(port):
        return f"it is the port of {service}"
    if port < first_unprivileged():
        return "it is a privileged port"
    if FIRST <= port <= LAST:
        return "Atoll leases ports of that range"
    return None


MAX_CANONICAL = 64
"""Of one checkout."""
_MAX_PORT = 65_535
UNDECLARED = "it is not declared in the project file"
_TOO_MANY = f"a checkout has at most {MAX_CANONICAL} ports"


class Selection(NamedTuple):
    taken: tuple[int, ...]
    """Those that the owner named first."""
    refused: dict[int, str]
    """Declared ports that are not taken, each with the reason."""


def select(
    cache: StoreCache, capsule: CapsuleRecord, named: Collection[int], router_port: int
) -> Selection:
    """The canonical ports of a capsule that is checked out with `named`."""
    taken: dict[int, None] = {}
    refused: dict[int, str] = {}
    leased = cache.leased_ports()
    own = set(declared(capsule).values())
    for port in (*sorted(named), *sorted(own - set(named))):
        reason = _find_use(port, leased, router_port)
        if port not in named:
            reason = reason or find_reason(port)
        elif port not in own and not has_own_network(capsule):
            reason = UNDECLARED
        if reason is None and len(taken) >= MAX_CANONICAL:
            reason = _TOO_MANY
        if reason is None:
            taken[port] = None
        else:
            refused[port] = reason
    return Selection(tuple(taken), refused)


def require_named(selection: Selection, capsule: CapsuleRecord, named: Collection[int]) -> None:
    """Raises StateError when the owner named a port that the capsule cannot have."""
    for port in named:
        if port in selection.refused:
            raise StateError(
                f"port {port} cannot be given to `{capsule.name}`: {selection.refused[port]}; "
                "nothing was changed",
                hint=f"atoll ports {capsule.name}",
            )


def command(capsule: CapsuleRecord, named: Collection[int]) -> str:
    """The command that checks the capsule out with these ports."""
    return " ".join([f"atoll checkout {capsule.name}", *(f"--port {n}" for n in sorted(named))])


def parse_named(value: object) -> tuple[int, ...]:
    """The ports of a request. Raises SpecError when they are none."""
    if not isinstance(value, list) or len(value) > MAX_CANONICAL:
        raise SpecError(f"name at most {MAX_CANONICAL} ports")
    for port in value:
        if type(port) is not int or not 1 <= port <= _MAX_PORT:
            raise SpecError(f"a port is a number from 1 to {_MAX_PORT}")
    return tuple(sorted(set(value)))


def _find_use(port: int, leased: Collection[int], router_port: int) -> str | None:
    """What Atoll itself uses the port for: another capsule would answer in its place."""
    if port == router_port:
        return "it is the port of Atoll's router"
    return "Atoll has leased it to a capsule" if port in leased else None


class Checkouts:
    def __init__(self, connections: PortConnections) -> None:
        self._connections = connections
        self._forwards: dict[int, PortForward] = {}
        self._owners: dict[int, str] = {}
        self._missing: dict[str, dict[int, OSError]] = {}

    def owner(self, port: int) -> str | None:
        """The project that has it."""
        return self._owners.get(port)

    def missing(self, project_id: str) -> dict[int, OSError]:
        """The ports that are due to the project and that another program has."""
        return self._missing.get(project_id, {})

    def open_missing(
        self, project_id: str, wanted: Mapping[int, Target]
    ) -> tuple[list[PortForward], dict[int, OSError]]:
        """Opens what the project does not have yet: the forwards, and what could not be opened."""
        opened: list[PortForward] = []
        failures: dict[int, OSError] = {}
        for port, target in wanted.items():
            if self._owners.get(port) == project_id:
                continue
            try:
                opened.append(PortForward(port, target, self._connections, both=True))
            except OSError as error:
                failures[port] = error
        return opened, failures

    def settle(
        self,
        project_id: str,
        wanted: Mapping[int, Target],
        opened: list[PortForward],
        failures: dict[int, OSError],
    ) -> None:
        """From here on the project's ports are these: new ones, moved ones, and no others."""
        for forward in opened:
            self._forwards[forward.port] = forward
            self._owners[forward.port] = project_id
        for port in [port for port, owner in self._owners.items() if owner == project_id]:
            if port in wanted:
                self._forwards[port].target = wanted[port]
            else:
                self._forwards.pop(port).close()
                del self._owners[port]
        self._missing[project_id] = failures

    def tend(self, project_id: str, wanted: Mapping[int, Target]) -> None:
        """Opens ports that are due and free, and closes those that are no longer due."""
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
    """Why a port cannot be opened, and how to fix it."""
    try:
        return _explain(port, error)
    except OSError as trouble:
        # No descriptor is left to find out more.
        why = f"{error.strerror} ({trouble.strerror})"
        return f"port {port} cannot be opened: {why}", f"ss -tanp 'sport = :{port}'"


def _explain(port: int, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EACCES:
        cure = f"sudo sysctl -w net.ipv4.ip_unprivileged_port_start={port}"
        return f"port {port} is privileged: ports below {_first_port()} need root", cure
    if error.errno != errno.EADDRINUSE:
        return f"port {port} cannot be opened: {error.strerror}", "atoll ports"
    occupants = find_occupants(port)
    if any(occupant.pid == os.getpid() for occupant in occupants):
        return f"port {port} is in use by Atoll itself, for its router or a lease", "atoll ports"
    if not occupants:
        return f"port {port} is in use, but no process listens on it", f"ss -tanp 'sport = :{port}'"
    names = " and ".join(occupant.render() for occupant in occupants)
    if homes := sorted({home for home in map(_find_home, occupants) if home is not None}):
        text = f"port {port} is in use by Atoll with the home {' and '.join(map(repr, homes))}"
        return text, "; ".join(
            f"ATOLL_HOME={shlex.quote(home)} atoll checkout --none" for home in homes
        )
    pids = sorted({str(occupant.pid) for occupant in occupants if occupant.pid is not None})
    cure = f"kill {' '.join(pids)}" if pids else f"sudo ss -tlnp 'sport = :{port}'"
    return f"port {port} is in use by {names}", cure


def _find_home(occupant: Occupant) -> str | None:
    """The home that a process serves if it is a daemon of Atoll, outside of capsules."""
    if occupant.pid is None:
        return None
    try:
        if os.stat(f"/proc/{occupant.pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino:
            return None
        with open(f"/proc/{occupant.pid}/cmdline", "rb") as stream:
            words = stream.read(_COMMAND_BYTES).split(b"\0")
    except OSError:
        return None
    # As `atoll.engine.network.daemon_client` starts it.
    is_daemon = len(words) > _HOME_WORD and _DAEMON in words[_HOME_WORD - 1]
    return os.fsdecode(words[_HOME_WORD]) if is_daemon else None


def refusal(reasons: Mapping[int, tuple[str, str]], *, again: str, is_root: bool) -> AtollError:
    """One error for all ports that could not be opened."""
    texts = [text for text, _ in reasons.values()]
    cures = list(dict.fromkeys(cure for _, cure in reasons.values()))
    kind = PrerequisiteError if is_root else StateError
    return kind(
        "; ".join(texts) + "; nothing was changed", hint=f"{'; '.join(cures)}, then: {again}"
    )
