"""Secrets as records: where a value comes from, how a capsule gets it, and who has it.

Nothing here holds a value. A value exists in the vault, in its source, and for a moment in the
process that delivers it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

USE_NOTED_S = 1.0
"""How often the use of a granted secret is stored."""


class OriginKind(StrEnum):
    """Where a value is read from."""

    TYPED = "typed"
    """At a prompt, or on standard input."""
    ENV = "env"
    FILE = "file"
    COMMAND = "command"
    KEYRING = "keyring"
    LOGIN = "login"
    """The login of an agent's own CLI, read from its file at every use and never stored."""


class SecretOrigin(NamedTuple):
    kind: OriginKind
    of: str = ""
    """The variable, path, command or keyring entry; of a login, the name of its adapter."""
    detail: str = ""
    """Of a command: the PATH that it was set with. Of a login: its description, as JSON."""

    @property
    def text(self) -> str:
        return f"{self.kind} {self.of}".rstrip()


class DeliveryKind(StrEnum):
    """The form in which a capsule gets a secret."""

    VARIABLE = "variable"
    FILE = "file"
    BROKER = "broker"


class BrokerScope(NamedTuple):
    """Where the daemon puts the value in, and for which requests."""

    hosts: tuple[str, ...]
    """Canonical names; the value is sent to no other host."""
    allow: tuple[str, ...] = ()
    """`METHOD /path*` rules (`atoll.model.request_rules`); empty: every request."""
    deny: tuple[str, ...] = ()
    """Rules that win over `allow`."""
    upstream: str = ""
    """The URL that requests are sent to instead of `https://HOST`: a proxy or a model server of
    the owner's, also on their own loopback."""
    repository: str = ""
    """`owner/name`: only git requests for this repository."""


class Delivery(NamedTuple):
    kind: DeliveryKind
    path: str = ""
    """Of the file inside; empty: `/run/atoll/secrets/NAME`."""
    broker: BrokerScope | None = None

    @property
    def text(self) -> str:
        if self.broker is not None:
            return f"broker {', '.join(self.broker.hosts)}"
        return f"{self.kind} {self.path}".rstrip()


class DeclaredSecret(NamedTuple):
    """A secret that a project file asks for. It exists once its owner grants it to a capsule."""

    origin: SecretOrigin
    delivery: Delivery
    ttl_s: float | None = None


class SecretRecord(NamedTuple):
    id: int
    project_id: str
    name: str
    """Also the variable that carries the value, or the placeholder, inside."""
    origin: SecretOrigin
    delivery: Delivery
    ttl_s: float | None
    """How long a grant lasts; None: until it is revoked."""
    created_at: float
    rotated_at: float | None = None
    revision: str = ""
    """Names this origin and delivery; a value in the vault is used only with the ones that it was
    stored for."""


class GrantRecord(NamedTuple):
    """A secret that one capsule may use."""

    secret: SecretRecord
    capsule_id: int
    placeholder: str
    """What the capsule holds instead of a brokered value; it is worth nothing elsewhere."""
    granted_at: float
    expires_at: float | None = None
    used_at: float | None = None

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class Substitution(NamedTuple):
    """A real value, and the mark by which its placeholder is recognized in a request.

    Any token of a request that contains `marker` is replaced as a whole, so that a placeholder can
    have the form of what it stands for.
    """

    marker: str
    value: str

    def __repr__(self) -> str:
        return f"Substitution(marker={self.marker!r})"


def make_placeholder(random: bytes) -> str:
    """The placeholder of a grant, from 10 random bytes: a word that occurs nowhere else."""
    return f"atollph{random.hex()}"


def marker_of(placeholder: str, field: str = "") -> str:
    """The marker of one field of a secret with several values; `field` is a lower-case word."""
    return f"{placeholder}x{field}z"


class AuditEntry(NamedTuple):
    """One act on a secret, or one use of it. Never has a value."""

    at: float
    secret: str
    capsule: str | None
    act: str
    """`set`, `rotated`, `removed`, `granted`, `revoked`, `used`, `refused`, `withheld`."""
    detail: str = ""
