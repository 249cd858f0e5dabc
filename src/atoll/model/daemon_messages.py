"""Requests to the daemon and its replies, and how both travel: one JSON object each.

A request is an object with its verb in `do`. Replies also carry the daemon's version, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    NotRequired,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from atoll.model.enclosure import EnclosureError, parse
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


class UnlockRequest(NamedTuple):
    """Use this key of the vault until a `LockRequest`, or the end of the daemon; a worker that is
    replaced hands it on.
    """

    id: str
    key: str
    """In hexadecimal digits."""

    def __repr__(self) -> str:
        return f"UnlockRequest(id={self.id!r})"


class LockRequest(NamedTuple):
    pass


DaemonRequest: TypeAlias = (
    StatusRequest
    | StopRequest
    | AttachRequest
    | JournalRequest
    | RouterRequest
    | PortsRequest
    | CheckoutRequest
    | ChangesRequest
    | UnlockRequest
    | LockRequest
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
    "unlock": UnlockRequest,
    "lock": LockRequest,
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


_WHOLE = {"status": "DaemonStatusShape", "report": "ProjectPortsShape"}
"""Fields that hold the whole object, and its shape."""


def encode_request(request: DaemonRequest) -> dict[str, object]:
    return {"do": _VERBS[type(request)], **request._asdict()}


def parse_request(value: Mapping[str, object]) -> DaemonRequest:
    """Raises SpecError for an unknown verb, and for unknown, missing and wrong values."""
    verb = value.get("do")
    kind = _REQUESTS.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise SpecError(f"the daemon cannot `{verb}`")
    given = {key: item for key, item in value.items() if key != "do"}
    try:
        return parse(kind, given)
    except EnclosureError as error:
        raise SpecError(f"`{verb}`: {error}") from error


def encode_reply(reply: DaemonReply) -> dict[str, object]:
    match reply:
        case StatusReply():
            return {**reply.status}
        case PortsReply():
            return {**reply.report}
        case ChangesReply(watch=""):
            return {}
    return reply._asdict()


def parse_reply(kind: type[R], value: Mapping[str, object]) -> R:
    """Raises EnclosureError for a missing value and for values of the wrong type.

    Other keys are ignored: a daemon of another version may send more.
    """
    fields: tuple[str, ...] = kind._fields
    if fields in (StatusReply._fields, PortsReply._fields):
        whole = {key: item for key, item in value.items() if key != "revision"}
        _require_whole(fields[0], whole)
        return kind._make([whole])
    return parse(kind, {key: value[key] for key in fields if key in value})


def _require_whole(field: str, value: dict[str, object]) -> None:
    """For a reply whose only field holds the whole object."""
    from atoll.model import shapes  # noqa: PLC0415 - few verbs ask for these

    _require(getattr(shapes, _WHOLE[field]), value, field)


def _require(kind: Any, value: object, key: str) -> None:
    """Raises EnclosureError unless `value` is of one of the types that shapes consist of."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        _require_shape(kind, value, key)
    elif origin is UnionType:
        if value is not None:
            _require(inner[0], value, key)  # shapes have `X | None` only
    elif origin in (list, dict):
        if not isinstance(value, list | dict) or type(value) is not origin:
            raise EnclosureError(f"`{key}` is not a {origin.__name__}")
        for item in value.values() if isinstance(value, dict) else value:
            _require(inner[-1], item, key)
    elif type(value) not in ((int, float) if kind is float else (kind,)):
        raise EnclosureError(f"`{key}` is not of type {kind.__name__}")


def _require_shape(kind: Any, value: object, key: str) -> None:
    if not isinstance(value, dict):
        raise EnclosureError(f"`{key}` is not an object")
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        if name in value:
            _require(get_args(hint)[0] if is_optional else hint, value[name], name)
        elif not is_optional:
            raise EnclosureError(f"missing keys {[name]}")
