"""The report of a project's ports, as `atoll ports` shows it."""

from __future__ import annotations

import os
from typing import NamedTuple

from atoll.daemon.ports import checkout_ports
from atoll.daemon.ports.checkout_ports import Checkouts, explain
from atoll.daemon.ports.published_capsule import PublishedCapsule, StoreCache, has_own_network
from atoll.engine.network import urls
from atoll.host import listening_sockets
from atoll.model.errors import StateError
from atoll.model.shapes import PortShape, ProjectPortsShape, RefusedPortsShape, RouterShape
from atoll.model.state import CapsuleRecord

LISTENING, CLOSED = "listening", "closed"
UNPUBLISHED = "too many ports: not published"
UNKNOWN = "unknown: too many sockets listen in the capsule"
"""Of a port that an incomplete listing does not name."""
_MOST_ROWS = 200
"""An answer is one message, and messages are bounded."""
_MOST_REFUSED = 8


class ReportInput(NamedTuple):
    """What a report is made from."""

    cache: StoreCache
    attached: dict[int, PublishedCapsule]
    checkouts: Checkouts
    router_port: int
    router_trouble: OSError | None


def project_shape(
    picture: ReportInput, project_id: str, capsule_id: int | None
) -> ProjectPortsShape:
    """Reads /proc if a process has to be named, so it may take a moment.

    Raises StateError when there is no such project.
    """
    cache = picture.cache
    if project_id not in cache.projects:
        raise StateError("there is no such project", hint="atoll ls")
    label, name = cache.labels[project_id], cache.projects[project_id].name
    rows = [
        row
        for capsule in cache.of_project(project_id)
        if capsule_id in (None, capsule.id)
        for row in ranked_rows(picture, capsule)
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
        "not_canonical": not_canonical(picture, project_id, capsule_id),
        "ports": _first_by_rank(rows),
        "more": max(0, len(rows) - _MOST_ROWS),
    }


def _first_by_rank(rows: list[tuple[int, PortShape]]) -> list[PortShape]:
    """The rows that fit into an answer, in their original order."""
    kept = sorted(range(len(rows)), key=lambda index: rows[index][0])[:_MOST_ROWS]
    return [rows[index][1] for index in sorted(kept)]


def _checked_out(picture: ReportInput, project_id: str) -> str | None:
    capsule = picture.cache.checked_out(project_id)
    return None if capsule is None else capsule.name


def not_canonical(
    picture: ReportInput, project_id: str, capsule_id: int | None = None
) -> RefusedPortsShape | None:
    """What listens in the capsule that is checked out, or is declared, and was not taken; with the
    command that takes it. None when there is no such port, or another capsule is asked about.
    """
    capsule = picture.cache.checked_out(project_id)
    if capsule is None or capsule_id not in (None, capsule.id):
        return None
    named = picture.cache.checkouts[project_id].ports
    selection = checkout_ports.select(picture.cache, capsule, named, picture.router_port)
    reasons = dict(selection.refused)
    one = picture.attached.get(capsule.id)
    for port in one.listening if one is not None else ():
        if port not in selection.taken:
            reasons.setdefault(port, checkout_ports.find_reason(port) or checkout_ports.UNDECLARED)
    if not reasons:
        return None
    shown = sorted(reasons, key=lambda port: (port not in selection.refused, port))[:_MOST_REFUSED]
    wanted = {*named, *shown}
    possible = checkout_ports.select(picture.cache, capsule, wanted, picture.router_port).taken
    # A command that fails because of one port takes none, so it names no port that is root's.
    user_id = os.geteuid()
    gained = {
        port
        for port in wanted.intersection(possible)
        if port in named or checkout_ports.may_bind(port, user_id)
    }
    return {
        "ports": [{"port": port, "reason": reasons[port]} for port in shown],
        "more": len(reasons) - len(shown),
        "command": checkout_ports.command(capsule, gained) if gained - set(named) else None,
    }


def router_shape(picture: ReportInput) -> RouterShape:
    error = picture.router_trouble
    trouble = None if error is None else explain(picture.router_port, error)[0]
    return {"port": picture.router_port, "trouble": trouble}


def ranked_rows(picture: ReportInput, capsule: CapsuleRecord) -> list[tuple[int, PortShape]]:
    """A row for each port with its rank, the lowest first: canonical, declared and named ports (0),
    others that are listening (1), other leased ones (2), listening ports without a lease (3), and
    the rest (4).
    """
    chosen = picture.cache.checkouts.get(capsule.project_id)
    is_checked_out = chosen is not None and chosen.capsule_id == capsule.id
    named = set(chosen.ports) if chosen is not None and is_checked_out else set()

    def rank(row: PortShape) -> int:
        if row["canonical"] or row["inside"] in named or not row["name"].isdigit():
            return 0
        if row["dynamic"]:
            return 1 if row["state"] == LISTENING else 2
        return 3 if row["state"] == UNPUBLISHED else 4

    ranked = [(rank(row), row) for row in _capsule_rows(picture, capsule)]
    return sorted(ranked, key=lambda pair: pair[0])


def _capsule_rows(picture: ReportInput, capsule: CapsuleRecord) -> list[PortShape]:
    """One for each port: the leased ones in their order, then those without a lease."""
    one = picture.attached.get(capsule.id)
    own = has_own_network(capsule)
    listens = frozenset(one.listening) if one is not None else frozenset()
    if not own:
        listens = frozenset(place.port for place in listening_sockets.own_listeners())
    unseen = CLOSED if one is None or one.is_complete else UNKNOWN
    site = picture.cache.site_of(capsule)
    chosen = picture.cache.checkouts.get(capsule.project_id)
    is_checked_out = chosen is not None and chosen.capsule_id == capsule.id
    rows: list[PortShape] = []
    named = set(chosen.ports) if chosen is not None and is_checked_out else set()
    for name, leased in capsule.ports.items():
        number = capsule.numbers.get(name)
        inside = number if own else leased
        state = LISTENING if inside in listens else unseen
        if state == CLOSED and name.isdigit() and number not in named:
            # A process listened there before: a test client, or a server that has ended.
            continue
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
    unleased = set(one.unpublished if one is not None else ())
    if chosen is not None and is_checked_out:
        unleased |= {*chosen.ports} - {*capsule.numbers.values()}
    return rows + [_unleased_row(picture, capsule, number) for number in sorted(unleased)]


def _unleased_row(picture: ReportInput, capsule: CapsuleRecord, number: int) -> PortShape:
    """A port without a lease: one too many, or one that the owner named and that is closed."""
    one = picture.attached.get(capsule.id)
    chosen = picture.cache.checkouts.get(capsule.project_id)
    is_named = chosen is not None and chosen.capsule_id == capsule.id and number in chosen.ports
    is_held = is_named and picture.checkouts.owner(number) == capsule.project_id
    is_open = one is not None and number in one.listening
    return {
        "capsule": capsule.name, "name": str(number), "inside": number, "dynamic": None,
        "canonical": number if is_held else None, "url": None,
        "state": UNPUBLISHED if is_open else CLOSED,
    }  # fmt: skip
