"""What the picture knows, as plain data for whoever asks."""

from __future__ import annotations

from typing import Any, NamedTuple

from atoll.daemon.ports.attached import Attached
from atoll.daemon.ports.census import Census, has_own_network
from atoll.daemon.ports.checkouts import Checkouts, explain
from atoll.engine import urls
from atoll.host import listening
from atoll.model.errors import StateError
from atoll.model.state import Capsule

LISTENING, CLOSED = "listening", "closed"
_MOST_ROWS = 200
"""An answer is one message, and messages are bounded."""


class Picture(NamedTuple):
    """All that can be told of."""

    census: Census
    attached: dict[int, Attached]
    checkouts: Checkouts
    router_port: int
    router_trouble: OSError | None


def project_shape(picture: Picture, project_id: str, capsule_id: int | None) -> dict[str, Any]:
    """Looks at /proc when somebody has to be named, so it may take a moment.

    Raises StateError when there is no such project.
    """
    census = picture.census
    if project_id not in census.projects:
        raise StateError("there is no such project", hint="atoll ls")
    label, name = census.labels[project_id], census.projects[project_id].name
    rows = [
        row
        for capsule in census.of_project(project_id)
        if capsule_id in (None, capsule.id)
        for row in capsule_rows(picture, capsule)
    ]
    is_second = label != name
    return {
        "router": router_shape(picture),
        "label": label,
        "note": f"another project is called `{name}`: this one is `{label}` in host names"
        if is_second
        else None,
        "checked_out": _checked_out(picture, project_id),
        "missing": [
            explain(port, error)[0] for port, error in picture.checkouts.missing(project_id).items()
        ],
        "ports": rows[:_MOST_ROWS],
        "more": max(0, len(rows) - _MOST_ROWS),
    }


def _checked_out(picture: Picture, project_id: str) -> str | None:
    chosen = picture.census.checkouts.get(project_id)
    capsule = None if chosen is None else picture.census.capsules.get(chosen)
    return None if capsule is None else capsule.name


def router_shape(picture: Picture) -> dict[str, Any]:
    error = picture.router_trouble
    trouble = None if error is None else explain(picture.router_port, error)[0]
    return {"port": picture.router_port, "trouble": trouble}


def capsule_rows(picture: Picture, capsule: Capsule) -> list[dict[str, Any]]:
    """One for each port: the leased ones in their order, then those without a lease."""
    one = picture.attached.get(capsule.id)
    own = has_own_network(capsule)
    listens = one.listening if one is not None else set()
    if not own:
        listens = {place.port for place in listening.here()}
    site = picture.census.site_of(capsule)
    is_checked_out = picture.census.checkouts.get(capsule.project_id) == capsule.id
    rows = []
    for name, leased in capsule.ports.items():
        number = capsule.numbers.get(name)
        inside = number if own else leased
        state = LISTENING if inside in listens else CLOSED
        if one is not None and name in one.troubles:
            state = explain(leased, one.troubles[name])[0]
        held = is_checked_out and number is not None
        owner = picture.checkouts.owner(number) if held and number is not None else None
        rows.append(
            {
                "capsule": capsule.name,
                "name": name,
                "inside": inside,
                "dynamic": leased,
                "canonical": number if owner == capsule.project_id else None,
                "url": urls.url(picture.router_port, name, site)
                if picture.router_trouble is None
                else None,
                "state": state,
            }
        )
    rows += [
        {
            "capsule": capsule.name, "name": str(number), "inside": number, "dynamic": None,
            "canonical": None, "url": None, "state": "too many ports: not published",
        }
        for number in sorted(one.unnamed if one is not None else ())
    ]  # fmt: skip
    return rows
