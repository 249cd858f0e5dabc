"""The router's port: whether this home's daemon has it, and whether other users may connect.

Any user of the machine can listen on a free port of the loopback. A URL whose port another process
has would send the owner's browser, with the capsule's cookies, to that process.
"""

from __future__ import annotations

import os
from pathlib import Path

from atoll.engine.network import daemon_client, urls
from atoll.engine.state.session import Session
from atoll.host import files, tcp_diag
from atoll.model.daemon_messages import RouterReply, RouterRequest
from atoll.model.errors import SpecError, StateError

SHARE_VARIABLE = "ATOLL_SHARE_PORTS"
"""Set to `on`, other users may connect to published ports, until it is set to `off`."""
_SHARED_FILE = "ports-are-shared"


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
    """Why URLs do not work, and a fix, which may be empty; None when they do."""
    remember_choice(session)
    port = urls.router_port(session)
    answer = daemon_client.ask(session, RouterRequest(), RouterReply)
    if answer.trouble:
        return answer.trouble, answer.cure or ""
    found = tcp_diag.find_local(port)
    own = set(answer.inodes)
    if answer.port != port or not any(one.inode in own for one in found):
        return f"the daemon does not listen on port {port} of this network", "atoll daemon stop"
    if any(one.inode not in own for one in found):
        return f"port {port} is shared with another process", f"sudo ss -tlnp 'sport = :{port}'"
    return None


def remember_choice(session: Session) -> None:
    """Stores the choice in the owner's environment. Raises SpecError for another value."""
    word = session.owner.get(SHARE_VARIABLE, "").lower()
    path = session.home / _SHARED_FILE
    if word == "on":
        if not is_shared(session.home):
            files.write_atomic(path, b"")
    elif word == "off":
        path.unlink(missing_ok=True)
    elif word:
        raise SpecError(
            f"`{SHARE_VARIABLE}={word}` is neither `on` nor `off`", hint=f"unset {SHARE_VARIABLE}"
        )


def is_shared(home: Path) -> bool:
    return os.path.lexists(home / _SHARED_FILE)
