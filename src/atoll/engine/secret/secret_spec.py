"""What can be a secret: names, sources and forms as an owner asks for them, checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from atoll.engine.network import rules as network_rules
from atoll.engine.project import levels
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.host import programs
from atoll.model import request_rules, rules
from atoll.model.errors import IsolationError, SpecError
from atoll.model.names import printable
from atoll.model.secret import (
    BrokerScope,
    Delivery,
    DeliveryKind,
    OriginKind,
    SecretOrigin,
)
from atoll.model.state import CapsuleRecord, ProjectRecord


class SecretSpec(NamedTuple):
    """What `set` is asked for."""

    name: str
    origin: SecretOrigin = SecretOrigin(OriginKind.TYPED)
    delivery: Delivery | None = None
    """None: as it is, or a variable."""
    ttl_s: float | None = None
    value: bytes | None = None
    """Of a typed secret; values of other origins are read from their source."""

    def __repr__(self) -> str:
        return f"SecretSpec(name={self.name!r}, origin={self.origin!r})"


def require_name(name: str) -> None:
    """Raises SpecError, without the text: it may be a value that was given by mistake."""
    try:
        rules.require_secret_name(name)
    except ValueError as error:
        raise SpecError(
            f"the name of the secret {error}",
            hint="choose a name such as API_KEY; the value is asked for: atoll secret set API_KEY",
        ) from None


def require_delivery(form: Delivery) -> None:
    """Raises SpecError for a form with values that cannot be meant."""
    try:
        if form.kind is DeliveryKind.FILE and form.path:
            _require_path(form.path)
        if form.kind is DeliveryKind.BROKER:
            _require_scope(form.broker)
    except ValueError as error:
        raise SpecError(str(error)) from None


def _require_path(text: str) -> None:
    try:
        rules.require_inside_file(text)
    except ValueError as error:
        raise ValueError(f"the path of the file {error}") from None


def _require_scope(scope: BrokerScope | None) -> None:
    if scope is None or not scope.hosts:
        raise ValueError("a brokered secret needs a host")
    for host in scope.hosts:
        _require("the host", host, rules.require_host(host) == host)
    for rule in (*scope.allow, *scope.deny):
        _require("the rule", rule, request_rules.require_rule(rule) == rule)
    if scope.repository:
        request_rules.parse_repository(scope.repository)
    if scope.upstream:
        _require_url(scope.upstream)


def _require(what: str, text: str, is_canonical: bool) -> None:  # noqa: FBT001
    if not is_canonical:
        raise ValueError(f"{what} `{printable(text)}` is not in its usual form")


def _require_url(text: str) -> None:
    parts = urlsplit(text)
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError("the upstream must be a URL such as `http://127.0.0.1:8080/v1`")


def require_capable(session: Session, capsule: CapsuleRecord, form: Delivery, name: str) -> None:
    """Raises IsolationError if this capsule cannot use a secret in this form."""
    if form.kind is not DeliveryKind.BROKER or not levels.has_own_network(capsule.level):
        return
    if not network_rules.has_egress(capsule.level, isolation_plan(session, capsule)):
        raise IsolationError(
            f"`{name}` is a brokered secret, and `{capsule.name}` has no network access",
            hint="atoll new NAME --network allow",
        )


def absolute_origin(session: Session, project: ProjectRecord, origin: SecretOrigin) -> SecretOrigin:
    """The origin as it is stored: independent of the current directory and environment."""
    if origin.kind is OriginKind.FILE:
        return origin._replace(of=_absolute_path(session, project, origin.of))
    if origin.kind is OriginKind.COMMAND:
        path = programs.trusted_path(session.owner.get("PATH", ""), avoid=(project.root,))
        return origin._replace(detail=path)
    if origin.kind is OriginKind.KEYRING:
        try:
            rules.require_keyring_entry(origin.of)
        except ValueError as error:
            raise SpecError(f"the keyring entry {error}") from None
    return origin


def _absolute_path(session: Session, project: ProjectRecord, text: str) -> str:
    if text.startswith("~/"):
        home = session.owner.get("HOME") or os.path.expanduser("~")
        return os.path.join(home, text[2:])
    return os.path.normpath(Path(project.root, text))
