"""Names under which a capsule's ports are reached: `http://web.fix.shop.localhost:7080`.

Capsules and services are labels of host names already. Projects of one home may bear the same
name: the one that was known first has it, each later one gets a suffix from its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.engine.session import Session
from atoll.host import files, locks, sockets
from atoll.model.errors import PrerequisiteError, SpecError
from atoll.model.names import slug
from atoll.model.state import Capsule, Project

VARIABLE = "ATOLL_ROUTER_PORT"
DOMAIN = "localhost"
MAIN = "web"
"""The service that a capsule's own name stands for."""
_FIRST, _LAST = 7080, 7179
_FILE = "router-port"


def project_labels(projects: Sequence[Project]) -> dict[str, str]:
    """By id; `projects` come in the order in which they became known."""
    labels: dict[str, str] = {}
    for project in projects:
        name = slug(project.name) or "project"
        tried = [name, f"{name}-{project.id.rpartition('-')[2]}", slug(f"{name}-{project.id}")]
        taken = set(labels.values())
        labels[project.id] = next((label for label in tried if label not in taken), project.id)
    return labels


def url(port: int, *labels: str) -> str:
    return f"http://{'.'.join((*labels, DOMAIN))}:{port}"


def router_port(session: Session) -> int:
    """Where names are answered: as the owner says, or as was said or chosen before.

    What the owner says is kept: the daemon and every other command must know it.

    Raises SpecError for a variable that is no port, PrerequisiteError when no port is free.
    """
    path = session.home / _FILE
    kept = _find_kept(path)
    said = session.owner.get(VARIABLE)
    if not said:
        return kept or _choose(session, path)
    if not (said.isascii() and said.isdigit() and 0 < int(said) < 65_536):
        raise SpecError(f"`{VARIABLE}={said}` is not a port", hint=f"export {VARIABLE}={_FIRST}")
    if int(said) != kept:
        files.write_atomic(path, b"%d\n" % int(said))
    return int(said)


def _find_kept(path: Path) -> int | None:
    text = files.read_regular(path, limit_bytes=16)
    return int(text) if text and text.strip().isdigit() else None


def _choose(session: Session, path: Path) -> int:
    lock = locks.Lock(session.home / "locks" / _FILE)
    lock.acquire(wait=True)
    with lock:
        if kept := _find_kept(path):
            return kept
        for port in range(_FIRST, _LAST + 1):
            held = sockets.find_hold(port)
            if held is not None:
                held.close()
                files.write_atomic(path, b"%d\n" % port)
                return port
    raise PrerequisiteError(
        f"no port between {_FIRST} and {_LAST} is free for the router",
        hint=f"export {VARIABLE}=PORT",
    )


def of_capsule(session: Session, capsule: Capsule, names: Mapping[str, object]) -> dict[str, str]:
    """The URL of each of these services."""
    if not names:
        return {}
    labels = project_labels(session.store.projects_by_age())
    port = router_port(session)
    project = labels[capsule.project_id]
    return {name: url(port, name, capsule.name, project) for name in names}
