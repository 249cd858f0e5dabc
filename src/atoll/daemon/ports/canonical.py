"""Which ports of the host's loopback are canonical for a capsule that is checked out.

They are the declared ports and those that the owner names, never a port for the only reason that
something in the capsule listens on it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from atoll.daemon.ports import reserved
from atoll.daemon.ports.census import Census, declared, has_own_network
from atoll.model.errors import SpecError, StateError
from atoll.model.state import Capsule

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


def select(census: Census, capsule: Capsule, named: Collection[int], router_port: int) -> Selection:
    """The canonical ports of a capsule that is checked out with `named`."""
    taken: dict[int, None] = {}
    refused: dict[int, str] = {}
    leased = census.leased_ports()
    own = set(declared(capsule).values())
    for port in (*sorted(named), *sorted(own - set(named))):
        reason = _find_use(port, leased, router_port)
        if port not in named:
            reason = reason or reserved.find_reason(port)
        elif port not in own and not has_own_network(capsule):
            reason = UNDECLARED
        if reason is None and len(taken) >= MAX_CANONICAL:
            reason = _TOO_MANY
        if reason is None:
            taken[port] = None
        else:
            refused[port] = reason
    return Selection(tuple(taken), refused)


def require_named(selection: Selection, capsule: Capsule, named: Collection[int]) -> None:
    """Raises StateError when the owner named a port that the capsule cannot have."""
    for port in named:
        if port in selection.refused:
            raise StateError(
                f"port {port} cannot be given to `{capsule.name}`: {selection.refused[port]}; "
                "nothing was changed",
                hint=f"atoll ports {capsule.name}",
            )


def command(capsule: Capsule, named: Collection[int]) -> str:
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
