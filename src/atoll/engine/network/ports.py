"""Port leases: a free port is bound while its lease is stored, and never leased twice.

A port is bound exclusively while the lease is committed, so no other process can take it in
between, and it is leased to no other capsule until `rm`. The range is below the kernel's ephemeral
ports. A capsule with its own network can listen on any port; its leases are the host ports for
these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from atoll.engine.network import daemon_client, router, urls
from atoll.engine.project import levels
from atoll.engine.state.session import Session
from atoll.engine.state.store import PortTakenError
from atoll.host import sockets, tcp_diag
from atoll.model.daemon_messages import CheckoutRequest, PortsReply, PortsRequest
from atoll.model.errors import PrerequisiteError
from atoll.model.names import short_hash
from atoll.model.state import CapsuleRecord, ProjectRecord

if TYPE_CHECKING:
    from atoll.model.shapes import PortReport

FIRST, LAST = 20_000, 29_999
UNDECLARED = 3000
"""`PORT` in a capsule with its own network when no service is declared: any port is free there."""


def lease_with_ports(
    session: Session,
    wanted: Sequence[Sequence[str]],
    commit: Callable[[list[dict[str, int]]], list[CapsuleRecord]],
) -> list[CapsuleRecord]:
    """Finds a port for each name of each capsule and hands them to `commit`, which writes the
    leases.
    """
    while True:
        held: list[sockets.HeldPort] = []
        try:
            candidates = _candidates(session)
            found = []
            for names in wanted:
                numbers = []
                for _ in names:
                    port, holder = _next_free(candidates)
                    held.append(holder)
                    numbers.append(port)
                # Ascending: the store lists ports by number, and the first one becomes `PORT`.
                found.append(dict(zip(names, sorted(numbers), strict=True)))
            return commit(found)
        except PortTakenError:
            # Another command committed the same port after the registry was read; try again.
            continue
        finally:
            for holder in held:
                holder.close()


def _candidates(session: Session) -> Iterator[int]:
    """Each home starts at another port, so that two users of one machine rarely collide."""
    leased = session.store.leased_ports()
    span = LAST - FIRST + 1
    start = int(short_hash(str(session.home)), 16) % span
    numbers = (FIRST + (start + offset) % span for offset in range(span))
    return (number for number in numbers if number not in leased)


def _next_free(candidates: Iterator[int]) -> tuple[int, sockets.HeldPort]:
    for port in candidates:
        holder = sockets.find_hold(port)
        if holder is not None:
            return port, holder
    raise PrerequisiteError(
        f"no port between {FIRST} and {LAST} is free", hint="atoll ls, then atoll rm NAME"
    )


def lease_more(
    session: Session,
    capsule: CapsuleRecord,
    wanted: Mapping[str, int],
    release: Collection[str] = (),
) -> None:
    """Leases ports for a capsule that exists, name → number inside, and releases the leases in
    `release`, in one transaction. A name that has a lease keeps it.

    Raises StateError when the capsule is gone, PrerequisiteError when no port is free.
    """

    def commit(found: list[dict[str, int]]) -> list[CapsuleRecord]:
        leases = {name: (port, wanted[name]) for name, port in found[0].items()}
        session.store.change_ports(capsule, leases, release)
        return []

    lease_with_ports(session, [tuple(wanted)], commit)


def inside_ports(capsule: CapsuleRecord) -> dict[str, int]:
    """The ports on which the capsule's processes should listen, by name."""
    if not levels.has_own_network(capsule.level):
        return capsule.ports
    # Undeclared ports are named by their number, which their servers already know.
    return {name: port for name, port in capsule.numbers.items() if not name.isdigit()}


def variables(ports: Mapping[str, int], addresses: Mapping[str, str]) -> dict[str, str]:
    """`ATOLL_PORT_<NAME>` for each port, the first one as `PORT`, `ATOLL_URL_<NAME>`."""
    found = {f"ATOLL_PORT_{_upper(name)}": str(port) for name, port in ports.items()}
    found |= {f"ATOLL_URL_{_upper(name)}": text for name, text in addresses.items()}
    return {"PORT": str(next(iter(ports.values()))), **found} if ports else found


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def variables_of(session: Session, capsule: CapsuleRecord) -> dict[str, str]:
    """The environment variables with a capsule's ports and URLs.

    URLs are left out when the router does not serve them.
    """
    ports = inside_ports(capsule)
    if not ports and levels.has_own_network(capsule.level):
        return {"PORT": str(UNDECLARED)}
    if not ports or not daemon_client.is_wanted(session):
        return variables(ports, {})
    port = urls.router_port(session)
    if not tcp_diag.is_free_of_others(port):
        session.warn(f"no URLs are set in `{capsule.name}`: another user listens on port {port}")
        return variables(ports, {})
    return variables(ports, urls.of_capsule(session, capsule, ports))


def report(
    session: Session, project: ProjectRecord, capsule: CapsuleRecord | None = None
) -> PortReport:
    """Every port of the project's capsules, or of one, as the daemon sees them now.

    URLs are left out while another process listens on the router's port.
    """
    return _ask(session, PortsRequest(project.id, capsule.id if capsule else None))


def checkout(
    session: Session,
    project: ProjectRecord,
    capsule: CapsuleRecord | None,
    ports: Collection[int] = (),
) -> PortReport:
    """Gives the project's declared ports, and those in `ports`, to a capsule on the host's own
    loopback: those that it may have are taken together or not at all. None: to no capsule.

    Raises StateError when another process has one of them, PrerequisiteError when the kernel does
    not permit it; then nothing has changed.
    """
    named = tuple(sorted(set(ports)))
    return _ask(session, CheckoutRequest(project.id, capsule.id if capsule else None, named))


def _ask(session: Session, request: PortsRequest | CheckoutRequest) -> PortReport:
    trouble = router.find_trouble(session)
    found = daemon_client.ask(session, request, PortsReply).report
    report: PortReport = {
        "router": found["router"],
        "label": found["label"],
        "note": found["note"],
        "checked_out": found["checked_out"],
        "missing": found["missing"],
        "not_canonical": found["not_canonical"],
        "ports": found["ports"],
        "more": found["more"],
        "shared": router.is_shared(session.home),
    }
    if trouble is not None:
        report["router"] = {**report["router"], "trouble": trouble[0]}
        report["ports"] = [{**row, "url": None} for row in report["ports"]]
    return report
