"""Host names of a capsule's ports: `http://web.fix--shop.localhost:7080`.

A browser separates sites by their registrable domain, which below `localhost` is the last label
before it. So each capsule has its own label, `CAPSULE--PROJECT`, and its services are names below
it: they share a site with each other, and with no other capsule.

Projects of one home may have the same name: the one that was known first has it, each later one
gets a suffix from its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.engine.state.session import Session
from atoll.host import files, locks, sockets
from atoll.model.errors import PrerequisiteError, SpecError
from atoll.model.names import long_hash, slug
from atoll.model.state import CapsuleRecord, ProjectRecord

VARIABLE = "ATOLL_ROUTER_PORT"
DOMAIN = "localhost"
MAIN = "web"
"""The service that a capsule's name without a service refers to."""
_FIRST, _LAST = 7080, 7179
_FILE = "router-port"
_MARK = "--"
_LABEL_BYTES = 63
"""Of one label of a host name (RFC 1035)."""
_PART_BYTES = 20


def project_labels(projects: Sequence[ProjectRecord]) -> dict[str, str]:
    """By id; `projects` come in the order in which they became known."""
    labels: dict[str, str] = {}
    for project in projects:
        name = slug(project.name) or "project"
        tried = [name, f"{name}-{project.id.rpartition('-')[2]}", slug(f"{name}-{project.id}")]
        taken = set(labels.values())
        labels[project.id] = next((label for label in tried if label not in taken), project.id)
    return labels


def site_label(capsule: str, project: ProjectRecord, project_label: str) -> str:
    """The label of a capsule's own site, which no other capsule has.

    The plain form contains `--` exactly once: a project's label never contains it, and neither name
    begins or ends with a hyphen. The form with a hash contains it exactly twice. It is used for
    names that are too long, that contain `--` themselves, or that browsers would decode as an
    international name (`xn--`).
    """
    plain = f"{capsule}{_MARK}{project_label}"
    if len(plain) <= _LABEL_BYTES and plain.count(_MARK) == 1 and not plain.startswith("xn--"):
        return plain
    first = "x-n" if capsule == "xn" else slug(capsule)[:_PART_BYTES].strip("-")
    second = slug(project_label)[:_PART_BYTES].strip("-")
    return _MARK.join((first, second, long_hash(f"{project.id}/{capsule}")))


def url(port: int, *labels: str) -> str:
    return f"http://{'.'.join((*labels, DOMAIN))}:{port}"


def router_port(session: Session) -> int:
    """The port of the router: as set by the owner, or as set or chosen before.

    The setting is stored, because the daemon and every other command need it.

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
        if port := find_free():
            files.write_atomic(path, b"%d\n" % port)
            return port
    raise PrerequisiteError(
        f"no port between {_FIRST} and {_LAST} is free for the router",
        hint=f"export {VARIABLE}=PORT",
    )


def find_free(avoid: int = 0) -> int | None:
    """A port that the router could have now."""
    for port in range(_FIRST, _LAST + 1):
        held = sockets.find_hold(port) if port != avoid else None
        if held is not None:
            held.close()
            return port
    return None


def of_capsule(
    session: Session, capsule: CapsuleRecord, names: Mapping[str, object]
) -> dict[str, str]:
    """The URL of each of these services."""
    if not names:
        return {}
    projects = session.store.projects_by_age()
    project = next(one for one in projects if one.id == capsule.project_id)
    site = site_label(capsule.name, project, project_labels(projects)[project.id])
    port = router_port(session)
    return {name: url(port, name, site) for name in names}
