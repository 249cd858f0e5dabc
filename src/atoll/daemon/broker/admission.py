"""Whether a request may be sent to a brokered host, and with which secrets. Pure.

Law: what is checked is what is forwarded. A request whose path, host or credentials two parsers
could read differently is refused, never repaired.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote_plus

from atoll.daemon.broker import substitution
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import Field, Request
from atoll.engine.secret.brokered import BrokeredSecret
from atoll.model import request_rules
from atoll.model.egress import canonical_name
from atoll.model.names import printable
from atoll.model.secret import BrokerScope

_SHOWN_CHARACTERS = 160
_TLS_PORT = ":443"
_NEVER_METHODS = frozenset({"CONNECT", "TRACE", "TRACK"})
"""TRACE would return the real value in the body of its response."""
_OVERRIDES = frozenset({
    b"x-http-method", b"x-http-method-override", b"x-method-override", b"x-original-method",
    b"x-forwarded-method", b"x-original-url", b"x-original-uri", b"x-original-path",
    b"x-rewrite-url", b"x-rewrite-uri", b"x-override-url", b"x-forwarded-uri", b"x-forwarded-url",
    b"x-forwarded-path", b"x-forwarded-prefix",
})  # fmt: skip
"""By which some servers take another method or path than those that the rules saw."""
_OVERRIDE_PARAMETERS = frozenset({
    "_method", "$httpmethod", "$method", "httpmethod", "http_method", "x-http-method",
    "x-http-method-override", "x-method-override",
})  # fmt: skip
"""The same in the query."""
_OWN_FIELDS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"trailer"))
"""Made anew for the server, as the hop-by-hop fields are."""
_REASONS = {
    400: b"Bad Request", 403: b"Forbidden", 405: b"Method Not Allowed", 421: b"Misdirected Request",
    502: b"Bad Gateway", 503: b"Service Unavailable",
}  # fmt: skip


class Rejection(Exception):  # noqa: N818 - an answer, not an error
    """A request is not forwarded. No text has a value."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: str | None = None,
        logged: str = "",
        secret: BrokeredSecret | None = None,
    ) -> None:
        """`message` and `hint` are shown inside, `logged` to the owner if it says more; `secret` is
        the one whose rules refuse the request.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.logged = logged or message
        self.secret = secret

    @property
    def reason(self) -> bytes:
        return _REASONS[self.status]

    def body(self) -> bytes:
        """JSON in a form that the clients of models show to their users."""
        error = {"type": "atoll", "message": f"atoll: {self.message}", "hint": self.hint}
        return json.dumps({"type": "error", "error": error}).encode() + b"\n"


class ClientRequest(NamedTuple):
    """A request as it may be forwarded."""

    method: str
    path: str
    """As it was sent, without the query."""
    query: str
    """With its `?`."""
    fields: tuple[Field, ...]
    """End to end, without those that are made anew."""
    upgrade: bytes = b""
    """`websocket`, or nothing."""

    @property
    def plain_path(self) -> str:
        """As the rules and the meter see it, if it has such a form."""
        try:
            path = request_rules.canonical_path(self.path)
        except ValueError:
            return self.path
        return request_rules.without_parameters(path)

    @property
    def shown(self) -> str:
        """For the log: bounded, printable, without the query, which may hold values."""
        text = printable(f"{self.method} {self.path}")
        return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class Permit(NamedTuple):
    """A request that may be forwarded."""

    secrets: tuple[BrokeredSecret, ...]
    """Those whose placeholders it carries."""
    scope: BrokerScope
    """Says where it is sent."""
    model: bool
    """Whether it is sent in the name of a model login."""
    grants: tuple[BrokeredSecret, ...]
    """Those that permit it: while one of them is left, it may go on."""


def parse_client_request(request: Request, *, path_prefix: str = "") -> ClientRequest:
    """A parsed head as a request in origin form, below a prefix that is taken away.

    Raises Rejection.
    """
    if request.method in _NEVER_METHODS:
        raise Rejection(405, f"`{request.method}` is not passed to brokered hosts")
    if request.method != request.method.upper():
        # Some servers ignore the case, which rules and the counting of model traffic do not.
        raise Rejection(400, f"the method `{request.method}` is not in upper case")
    try:
        path, query = request_rules.split_target(request.target.decode("latin-1"))
    except ValueError as error:
        raise Rejection(400, f"the request target {error}") from None
    fields = [f for f in http1.end_to_end(request.fields) if f[0].lower() not in _OWN_FIELDS]
    path = path.removeprefix(path_prefix) or "/"
    return ClientRequest(request.method, path, query, tuple(fields), _find_upgrade(request))


def _find_upgrade(request: Request) -> bytes:
    wanted = [value.lower() for value in request.values(b"upgrade")]
    is_asked = b"upgrade" in request.connection_options and wanted == [b"websocket"]
    is_plain = request.method == "GET" and request.framing == http1.Framing()
    return b"websocket" if is_asked and is_plain and request.minor else b""


def require_host(request: Request, host: str) -> None:
    """Raises Rejection unless the request names exactly the host of its connection."""
    named = (request.values(b"host") or [b""])[0].decode("latin-1")
    try:
        is_same = canonical_name(named.removesuffix(_TLS_PORT)) == host
    except ValueError:
        is_same = False
    if not is_same:
        raise Rejection(421, f"the request names another host than `{host}`")


def admit(request: ClientRequest, host: str, granted: Sequence[BrokeredSecret]) -> Permit:
    """Decides about a request to a host; `granted` are all brokered secrets of the capsule for it.

    Raises Rejection.
    """
    if not granted:
        raise Rejection(
            403,
            f"no secret is brokered for `{host}` any more: the grant was revoked or has expired",
            hint="the owner can grant it again: atoll secret grant NAME CAPSULE",
        )
    by_placeholder = {secret.grant.placeholder: secret for secret in granted}
    foreign = substitution.find_foreign(request.fields, request.query, by_placeholder)
    if foreign is not None:
        raise Rejection(
            403,
            f"`{foreign}` carries a credential that is not a placeholder of this capsule: only"
            f" brokered secrets can be used with `{host}`",
        )
    # Vendors of models repeat what they do not understand in the message of an error.
    models = [p for p, secret in by_placeholder.items() if secret.model]
    misplaced = substitution.find_misplaced(request.fields, request.query, models)
    if misplaced is not None:
        shown = printable(misplaced[:_SHOWN_CHARACTERS])
        raise Rejection(
            403, f"`{shown}` has a placeholder, and is no header or parameter for credentials"
        )
    found = substitution.find_placeholders(request.fields, request.query, by_placeholder)
    marked = tuple(by_placeholder[placeholder] for placeholder in sorted(found))
    denials = {secret: _find_denial(secret, request) for secret in marked or granted}
    permitting = tuple(secret for secret, denial in denials.items() if denial is None)
    if not permitting or (marked and len(permitting) < len(marked)):
        secret, denial = next((s, d) for s, d in denials.items() if d is not None)
        name = secret.grant.secret.name
        raise Rejection(
            403,
            f"`{request.shown}` is not allowed for `{name}`: {denial}",
            logged=f"not allowed for `{name}`: {denial}",
            secret=secret,
        )
    scope = _scope(permitting[0])
    if any(_scope(secret).upstream != scope.upstream for secret in marked):
        raise Rejection(403, "the request has placeholders of secrets for different servers")
    return Permit(marked, scope, any(secret.model for secret in permitting), permitting)


def _scope(secret: BrokeredSecret) -> BrokerScope:
    return secret.grant.secret.delivery.broker or BrokerScope(())


def _find_denial(secret: BrokeredSecret, request: ClientRequest) -> str | None:
    """Why a secret may not be used for a request; None if it may.

    If nothing depends on the path, one without a canonical form is passed on.
    """
    scope = _scope(secret)
    if not (any(scope[1:]) or secret.model):
        return None
    override = next((n for n, _ in request.fields if http1.usual_name(n) in _OVERRIDES), None)
    if override is not None:
        return f"it has the header `{override.decode().lower()}`"
    parameter = _find_override_parameter(request.query)
    if parameter is not None:
        return f"it has the parameter `{parameter}`"
    try:
        path = request_rules.canonical_path(request.path)
    except ValueError as error:
        return f"its path {error}"
    if scope.repository:
        method, query = request.method, request.query
        if not request_rules.is_of_repository(method, path, query, scope.repository):
            return f"only git requests for `{scope.repository}` are"
    return request_rules.find_denial(request.method, path, allow=scope.allow, deny=scope.deny)


def _find_override_parameter(query: str) -> str | None:
    parts = query.removeprefix("?").replace(";", "&").split("&")
    names = (unquote_plus(part.partition("=")[0]).strip().lower() for part in parts)
    return next((name for name in names if name in _OVERRIDE_PARAMETERS), None)
