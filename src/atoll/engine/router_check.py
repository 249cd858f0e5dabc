"""Whether the router's port is in this home's hands, before anything trusts a URL that names it.

Any user of the machine can listen on a free port of the loopback. A URL whose port somebody else
holds would send the owner's browser, with the capsule's cookies, to them.
"""

from __future__ import annotations

from typing import Any

from atoll.engine import daemons, sharing, urls
from atoll.engine.session import Session
from atoll.host import tcp_diag
from atoll.model.errors import StateError


def require_own(session: Session) -> int:
    """Returns the router's port. Raises StateError unless this home's daemon alone listens on it.

    The daemon is asked over its own socket, which only the owner can open, for the inodes of its
    listening sockets; the kernel is asked which sockets listen on the port in this network.
    """
    port = urls.router_port(session)
    if (trouble := find_trouble(session)) is None:
        return port
    reason, cure = trouble
    free = urls.find_free(port)
    choice = f"export {urls.VARIABLE}={free or 'PORT'}"
    raise StateError(
        f"{reason}: the URLs of this home do not lead to its capsules",
        hint=f"{choice}, or: {cure}" if cure else choice,
    )


def find_trouble(session: Session) -> tuple[str, str] | None:
    """Why URLs cannot be trusted, and a cure, which may be empty; None when they can."""
    sharing.remember_choice(session)
    port = urls.router_port(session)
    answer = daemons.ask(session, {"do": "router"})
    if answer.get("trouble"):
        return str(answer["trouble"]), str(answer.get("cure") or "")
    found = tcp_diag.find_local(port)
    own = _inodes(answer)
    if answer.get("port") != port or not any(one.inode in own for one in found):
        return f"the daemon does not listen on port {port} of this network", "atoll daemon stop"
    if any(one.inode not in own for one in found):
        return f"port {port} is shared with another process", f"sudo ss -tlnp 'sport = :{port}'"
    return None


def _inodes(answer: dict[str, Any]) -> set[int]:
    listed = answer.get("inodes")
    return set(listed) if isinstance(listed, list) else set()
