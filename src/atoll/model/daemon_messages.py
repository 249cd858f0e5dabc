"""Requests to the daemon and its replies, and how both travel: one JSON object each.

A request is an object with its verb in `do`. Replies also carry the daemon's version, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from atoll.model.errors import SpecError

if TYPE_CHECKING:
    from atoll.model.shapes import DaemonStatusShape, ProjectPortsShape


class StatusRequest(NamedTuple):
    pass


class StopRequest(NamedTuple):
    pass


class AttachRequest(NamedTuple):
    """Serve the network of a capsule, as its policy is now."""

    capsule: int


class JournalRequest(NamedTuple):
    """Write the refusals that are still being counted to the capsule's egress log."""

    capsule: int


class RouterRequest(NamedTuple):
    pass


class PortsRequest(NamedTuple):
    project: str
    capsule: int | None


class CheckoutRequest(NamedTuple):
    project: str
    capsule: int | None
    ports: tuple[int, ...] = ()


class ChangesRequest(NamedTuple):
    """What has changed in a checkout since a position of a watch."""

    project: str
    root: str
    watch: str
    position: int


DaemonRequest: TypeAlias = (
    StatusRequest
    | StopRequest
    | AttachRequest
    | JournalRequest
    | RouterRequest
    | PortsRequest
    | CheckoutRequest
    | ChangesRequest
)
_REQUESTS: dict[str, type[DaemonRequest]] = {
    "status": StatusRequest,
    "stop": StopRequest,
    "attach": AttachRequest,
    "journal": JournalRequest,
    "router": RouterRequest,
    "ports": PortsRequest,
    "checkout": CheckoutRequest,
    "changes": ChangesRequest,
}
_VERBS = {kind: verb for verb, kind in _REQUESTS.items()}


class DoneReply(NamedTuple):
    pass


class StatusReply(NamedTuple):
    status: DaemonStatusShape


class AttachReply(NamedTuple):
    held: bool
    """Whether a process holds the capsule's view."""
    problems: dict[str, str]
    """What could not be opened, and why."""


class RouterReply(NamedTuple):
    port: int
    inodes: tuple[int, ...]
    """Of the router's listening sockets."""
    trouble: str | None
    cure: str | None


class PortsReply(NamedTuple):
    report: ProjectPortsShape


class ChangesReply(NamedTuple):
    watch: str = ""
    """Empty when the checkout is not watched."""
    position: int = 0
    paths: tuple[str, ...] | None = None
    """None when too much has changed to list it."""


DaemonReply: TypeAlias = (
    DoneReply | StatusReply | AttachReply | RouterReply | PortsReply | ChangesReply
)
R = TypeVar("R", DoneReply, StatusReply, AttachReply, RouterReply, PortsReply, ChangesReply)
_FIELDS = {
    "capsule": (int,),
    "project": (str,),
    "root": (str,),
    "watch": (str,),
    "position": (int,),
    "ports": (list,),
}


_WHOLE = ("status", "report")
"""Fields that hold the whole object."""


def encode_request(request: DaemonRequest) -> dict[str, object]:
    return {"do": _VERBS[type(request)], **request._asdict()}


def parse_request(value: Mapping[str, object]) -> DaemonRequest:
    """Raises SpecError for an unknown verb and for values of the wrong type."""
    verb = value.get("do")
    kind = _REQUESTS.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise SpecError(f"the daemon cannot `{verb}`")
    given: dict[str, Any] = {key: value[key] for key in kind._fields if key in value}
    optional = ("capsule",) if kind in (PortsRequest, CheckoutRequest) else ()
    for key, item in given.items():
        if type(item) not in _FIELDS[key] and not (item is None and key in optional):
            raise SpecError(f"`{verb}`: `{key}` is a wrong value")
    if "ports" in given:
        given["ports"] = tuple(given["ports"])
    try:
        return kind(**given)
    except TypeError as error:
        raise SpecError(f"`{verb}`: a value is missing") from error


def encode_reply(reply: DaemonReply) -> dict[str, object]:
    match reply:
        case StatusReply():
            return {**reply.status}
        case PortsReply():
            return {**reply.report}
        case ChangesReply(watch=""):
            return {}
    return reply._asdict()


def parse_reply(kind: type[R], value: Mapping[str, Any]) -> R:
    """Raises TypeError when a value is missing."""
    whole = {key: item for key, item in value.items() if key != "revision"}
    given: dict[str, Any] = {}
    fields: tuple[str, ...] = kind._fields
    for key in fields:
        if key in _WHOLE:
            given[key] = whole
        elif key in value:
            item = value[key]
            given[key] = tuple(item) if isinstance(item, list) else item
    return kind(**given)
