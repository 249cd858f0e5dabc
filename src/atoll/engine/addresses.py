"""Where a capsule's web services are opened: from the host by name, from inside by number."""

from __future__ import annotations

from atoll.engine import daemons, levels, router_check, urls
from atoll.engine.session import Session
from atoll.host import tcp_diag
from atoll.model.errors import SpecError, StateError
from atoll.model.state import Capsule

_LAST_PORT = 65_535


def url_of(session: Session, capsule: Capsule, service: str | None) -> str:
    """The address on the host, by the capsule's own name.

    Raises SpecError for a service that it does not have, StateError when nothing is published, or
    when somebody else listens on the router's port.
    """
    if not daemons.is_wanted(session) and levels.has_own_network(capsule.level):
        raise StateError(
            f"nothing of `{capsule.name}` is published without the daemon",
            hint=f"unset {daemons.OFF}, or: atoll open {capsule.name} --headless",
        )
    name = _name(capsule, service)
    if not daemons.is_wanted(session):
        port = int(capsule.ports.get(name, name))
        if not tcp_diag.is_free_of_others(port):
            raise StateError(
                f"another user listens on port {port}: that is not `{capsule.name}`",
                hint=f"sudo ss -tlnp 'sport = :{port}'",
            )
        return f"http://localhost:{port}/"
    router_check.require_own(session)
    return f"{urls.of_capsule(session, capsule, {name: None})[name]}/"


def url_inside(capsule: Capsule, service: str | None) -> str:
    """The address on the capsule's own localhost; a blank page when no service is named."""
    if service is None:
        return "about:blank"
    name = _name(capsule, service)
    return f"http://localhost:{capsule.numbers.get(name, name)}/"


def _name(capsule: Capsule, service: str | None) -> str:
    """A lease, or a number; when none is named, `web`, or the only one that there is."""
    if service is None:
        chosen = urls.MAIN if urls.MAIN in capsule.ports else next(iter(capsule.ports), None)
        if chosen is None or (chosen != urls.MAIN and len(capsule.ports) > 1):
            raise StateError(
                f"`{capsule.name}` has several ports, or none yet: name one",
                hint=f"atoll ports {capsule.name}",
            )
        return chosen
    if service in capsule.ports:
        return service
    if service.isascii() and service.isdigit() and 0 < int(service) <= _LAST_PORT:
        return service
    raise SpecError(
        f"`{capsule.name}` has no service `{service}`",
        hint="name one of " + ", ".join([*capsule.ports, "a port"]),
    )
