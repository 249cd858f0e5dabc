"""Where a capsule's web services are opened: from the host by name, from inside by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.network import daemon_client, router, urls
from atoll.engine.project import levels
from atoll.engine.state.events import read_events
from atoll.engine.state.session import Session
from atoll.host import tcp_diag
from atoll.host.process import wait_until
from atoll.model.daemon_messages import PortsReply, PortsRequest
from atoll.model.errors import SpecError, StateError
from atoll.model.state import CapsuleRecord

if TYPE_CHECKING:
    from atoll.model.shapes import PortShape

_LAST_PORT = 65_535
_LEASED_S = 2.0
_MOST_NAMES = 8


def url_of(session: Session, capsule: CapsuleRecord, service: str | None) -> str:
    """The address on the host, by the capsule's own name.

    Raises SpecError for a service that it does not have, StateError when the port is not published,
    or when another process listens on the router's port.
    """
    if not daemon_client.is_wanted(session) and levels.has_own_network(capsule.level):
        raise StateError(
            f"ports of `{capsule.name}` are not published without the daemon",
            hint=f"unset {daemon_client.OFF}, or: atoll open {capsule.name} --headless",
        )
    name = _choose(session, capsule) if service is None else _name(capsule, service)
    if not daemon_client.is_wanted(session):
        port = int(capsule.ports.get(name, name))
        if not tcp_diag.is_free_of_others(port):
            raise StateError(
                f"another user listens on port {port}: that is not `{capsule.name}`",
                hint=f"sudo ss -tlnp 'sport = :{port}'",
            )
        return f"http://localhost:{port}/"
    router.require_own(session)
    _require_published(session, capsule, name)
    return f"{urls.of_capsule(session, capsule, {name: None})[name]}/"


def _require_published(session: Session, capsule: CapsuleRecord, name: str) -> None:
    """Raises StateError for a port without a lease: the router does not know its name.

    Waits a moment: a port gets its lease soon after something has begun to listen on it.
    """

    def is_leased() -> bool:
        fresh = session.store.capsule(capsule.id)
        if fresh is None:
            return False
        return name in fresh.ports or (name.isdigit() and int(name) in fresh.numbers.values())

    cursor = session.store.newest_event()
    if is_leased():
        return
    leased = read_events(
        session.store,
        cursor,
        follow=True,
        matches=lambda event: event.kind == "port.leased" and event.capsule_id == capsule.id,
        timeout_s=_LEASED_S,
    )
    if any(is_leased() for _ in leased):
        return
    rows = _rows(session, capsule)
    listening = [row["name"] for row in rows if row["url"] and row["state"] == "listening"]
    reason = "nothing listens on it, and it is not declared"
    for row in rows:
        if str(row["inside"]) == name:
            reason = f"it is `{row['name']}`" if row["url"] else row["state"]
    open_ones = ", ".join(listening[:_MOST_NAMES]) or "nothing"
    raise StateError(
        f"port {name} of `{capsule.name}` is not published: {reason}; listening: {open_ones}",
        hint=f"atoll ports {capsule.name}",
    )


def url_inside(capsule: CapsuleRecord, service: str | None) -> str:
    """The address on the capsule's own localhost; a blank page when no service is named."""
    if service is None:
        return "about:blank"
    name = _name(capsule, service)
    return f"http://localhost:{capsule.numbers.get(name, name)}/"


def _choose(session: Session, capsule: CapsuleRecord) -> str:
    """The default service: `web`, the only one that is declared, or the only one that listens."""
    declared = [name for name in capsule.ports if not name.isdigit()]
    if urls.MAIN in declared or len(declared) == 1:
        return urls.MAIN if urls.MAIN in declared else declared[0]
    listening: list[str] = []

    def is_settled() -> bool:
        """A port gets its lease soon after something has begun to listen on it."""
        rows = _rows(session, capsule) if daemon_client.is_wanted(session) else []
        listening[:] = [str(row["name"]) for row in rows if row["state"] == "listening"]
        return bool(listening) or all(row["state"] == "closed" for row in rows)

    wait_until(is_settled, timeout_s=_LEASED_S, interval_s=0.1)
    chosen = [name for name in listening if name in declared] or listening
    if len(chosen) == 1:
        return chosen[0]
    found = ", ".join((chosen or declared)[:_MOST_NAMES])
    reason = f"several ports: {found}" if found else "no declared port, and no process listens"
    raise StateError(f"`{capsule.name}` has {reason}", hint=f"atoll open {capsule.name} PORT")


def _rows(session: Session, capsule: CapsuleRecord) -> list[PortShape]:
    request = PortsRequest(capsule.project_id, capsule.id)
    return daemon_client.ask(session, request, PortsReply).report["ports"]


def _name(capsule: CapsuleRecord, service: str) -> str:
    """A lease, or a number."""
    if service in capsule.ports:
        return service
    if service.isascii() and service.isdigit() and 0 < int(service) <= _LAST_PORT:
        return service
    raise SpecError(
        f"`{capsule.name}` has no service `{service}`",
        hint=" or ".join(["name " + ", ".join(capsule.ports)] * bool(capsule.ports) + ["a port"]),
    )
