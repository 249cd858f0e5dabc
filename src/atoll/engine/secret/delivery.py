"""What a run gets of the secrets that were granted to its capsule.

A secret in a variable goes to the run in a memfd, one in a file to the private tmpfs of the view,
and of a brokered one the capsule gets a placeholder, with the CA that the broker's certificates
need. No value is written to a disk, and none is in a command line.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress

from atoll.engine.project import levels
from atoll.engine.run import internal_runs
from atoll.engine.run.runs import RunSpec
from atoll.engine.secret import resolve
from atoll.engine.state.session import Session
from atoll.host import programs, view_client
from atoll.host.view_client import InsideFile
from atoll.keeper import rlimits
from atoll.keeper.private_files import LIMIT_BYTES, PLACE
from atoll.model.enclosure import Enclosure
from atoll.model.errors import AtollError, IsolationError, StateError
from atoll.model.secret import (
    AuditEntry,
    DeliveryKind,
    GrantRecord,
    OriginKind,
    SecretRecord,
    marker_of,
)
from atoll.model.secretvalues import parts_of
from atoll.model.state import CapsuleRecord

_CA, _BUNDLE = "ca.pem", "ca-bundle.pem"
_FILES = "secrets/"
_ADDED_CA = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
"""Variables that name certificates which a program trusts in addition to its own."""
_ALL_CAS = (
    "SSL_CERT_FILE", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
)  # fmt: skip
"""Variables that name everything that a program trusts."""
_LINK_S = 30.0
_LINK = (
    'cd && mkdir -p -- "./$2" && cd "./$2" && '
    'if test -L "$1" || test ! -e "$1"; then ln -sfn -- "$3" "$1"; else exit 3; fi'
)
_OCCUPIED = 3


def require_deliverable(capsule: CapsuleRecord, secret: SecretRecord) -> None:
    """Raises IsolationError if the capsule's level has no place for a secret in this form."""
    kind = secret.delivery.kind
    if kind is DeliveryKind.VARIABLE or levels.has_own_network(capsule.level):
        return
    form = "a file" if kind is DeliveryKind.FILE else "a brokered secret"
    raise IsolationError(
        f"`{secret.name}` is {form}, which a capsule at level `{capsule.level}` cannot get",
        hint=f"atoll new NAME --level {levels.DEFAULT}, or use a variable: "
        f"atoll secret set {secret.name} --as-variable",
    )


def add_secrets(
    session: Session, capsule: CapsuleRecord, inside: Enclosure, spec: RunSpec
) -> RunSpec:
    """A run with the secrets that are granted to its capsule and have not expired.

    Raises SecretUnavailable when a value cannot be read: a run that lacks one would fail in a way
    that is hard to explain. Raises IsolationError at a level that cannot hold a secret's form.
    """
    grants = valid_grants(session, capsule)
    if not grants:
        return spec
    # This process holds values from here on.
    rlimits.dump_no_core()
    for grant in grants:
        require_deliverable(capsule, grant.secret)
    public, files = _brokered(session, capsule, grants)
    private: dict[str, str] = {}
    redact: list[bytes] = []
    for grant in grants:
        if grant.secret.delivery.kind is DeliveryKind.BROKER:
            continue
        value = resolve.resolve_value(session, grant.secret)
        redact += parts_of(value)
        if grant.secret.delivery.kind is DeliveryKind.VARIABLE:
            private[grant.secret.name] = os.fsdecode(value)
        else:
            files.append(_file_of(grant, value))
            public[f"{grant.secret.name}_FILE"] = path_of(grant.secret)
            _ensure_link(session, capsule, inside, grant.secret)
        _note_use(session, capsule, grant)
    return spec._replace(
        env={**public, **spec.env}, files=(*spec.files, *files)
    ).with_secrets(private, redact)  # fmt: skip


def valid_grants(session: Session, capsule: CapsuleRecord) -> list[GrantRecord]:
    now = time.time()
    return [g for g in session.store.secret_grants(capsule.id) if not g.is_expired(now)]


def path_of(secret: SecretRecord) -> str:
    """Where the file of a secret is inside; a path below HOME is a link to it."""
    return f"{PLACE}/{_name_of(secret)}"


def withdraw(capsule: CapsuleRecord, secret: SecretRecord) -> None:
    """Takes a revoked secret away from processes that run now, whatever form it has had."""
    if levels.has_own_network(capsule.level):
        view_client.drop_file(capsule.directory, _name_of(secret))


def drop_all_revoked(session: Session) -> None:
    """Removes what a command that was killed has left in the open views of any capsule."""
    for capsule in session.store.capsules():
        if levels.has_own_network(capsule.level) and view_client.has_socket(capsule.directory):
            # One that does not answer does not keep the others from it.
            with suppress(AtollError, OSError):
                drop_revoked(session, capsule)


def drop_revoked(session: Session, capsule: CapsuleRecord) -> None:
    """Removes the files of grants that were revoked."""
    # Listed first: what is granted from now on is not among them.
    names = view_client.find_files(capsule.directory) or ()
    found = [name for name in names if name.startswith(_FILES)]
    granted = {
        _name_of(grant.secret)
        for grant in (valid_grants(session, capsule) if found else ())
        if grant.secret.delivery.kind is DeliveryKind.FILE
    }
    for name in found:
        if name not in granted:
            view_client.drop_file(capsule.directory, name)


def replace(session: Session, capsule: CapsuleRecord, grant: GrantRecord) -> None:
    """Gives processes that run now the value of a secret, as far as its form allows."""
    if grant.secret.delivery.kind is not DeliveryKind.FILE or grant.is_expired(time.time()):
        return
    if view_client.find_files(capsule.directory) is not None:
        file = _file_of(grant, resolve.resolve_value(session, grant.secret))
        view_client.put_files(capsule.directory, [file], subject=capsule.name)
        drop_revoked(session, capsule)


def _name_of(secret: SecretRecord) -> str:
    return f"{_FILES}{secret.name}"


def _file_of(grant: GrantRecord, value: bytes) -> InsideFile:
    if len(value) > LIMIT_BYTES:
        raise StateError(f"the value of `{grant.secret.name}` is larger than {LIMIT_BYTES} bytes")
    return InsideFile(_name_of(grant.secret), value, until=grant.expires_at)


def _brokered(
    session: Session, capsule: CapsuleRecord, grants: Iterable[GrantRecord]
) -> tuple[dict[str, str], list[InsideFile]]:
    """The variables and files of brokered secrets: placeholders, and the capsule's own CA.

    The placeholders of logins are in files and variables of the agent's own.
    """
    scopes = [(grant, grant.secret.delivery.broker) for grant in grants]
    found = [(grant, scope) for grant, scope in scopes if scope is not None]
    if not found:
        return {}, []
    from atoll.engine.secret import broker_ca  # noqa: PLC0415 - cryptography: only for these

    hosts = sorted({host for _, scope in found for host in scope.hosts})
    ca = broker_ca.ensure_ca(session, capsule, hosts)
    variables = dict.fromkeys(_ADDED_CA, f"{PLACE}/{_CA}")
    variables |= dict.fromkeys(_ALL_CAS, f"{PLACE}/{_BUNDLE}")
    for grant, _ in found:
        if grant.secret.origin.kind is not OriginKind.LOGIN:
            variables[grant.secret.name] = marker_of(grant.placeholder)
    return variables, [
        InsideFile(_CA, ca.ca_pem, is_public=True),
        InsideFile(_BUNDLE, ca.bundle_pem, is_public=True),
    ]


def _note_use(session: Session, capsule: CapsuleRecord, grant: GrantRecord) -> None:
    session.store.set_secret_used(grant)
    entry = AuditEntry(time.time(), grant.secret.name, capsule.name, "used", "given to a run")
    session.store.add_audit(capsule.project_id, entry)


def _ensure_link(
    session: Session, capsule: CapsuleRecord, inside: Enclosure, secret: SecretRecord
) -> None:
    """Makes the link in HOME that was declared as the path of the file; inside, since the capsule
    can write there. A failure is a warning: the file itself does not depend on it.
    """
    relative = secret.delivery.path.removeprefix("~/")
    if not secret.delivery.path:
        return
    # As long as the view is open, it is not made again.
    mark = f"links/{secret.name}.{zlib.crc32(relative.encode()):08x}"
    if mark in (view_client.find_files(capsule.directory) or ()):
        return
    above, _, name = relative.rpartition("/")
    argv = ("/bin/sh", "-c", _LINK, "sh", name, above, path_of(secret))
    # Of no file of the capsule's: nothing that a restricted run prepared is executed.
    env = {"PATH": programs.host_path(), "HOME": inside.env["HOME"]}
    try:
        done = internal_runs.ask(
            session, capsule, argv, env=env, timeout_s=_LINK_S, also_write=(".git/**",)
        )
    except (AtollError, OSError) as error:
        reason = error.message if isinstance(error, AtollError) else str(error)
    else:
        reason = "something else is there" if done.code == _OCCUPIED else "it cannot be written"
        if done.code == 0:
            view_client.put_files(
                capsule.directory, [InsideFile(mark, b"", is_public=True)], subject=capsule.name
            )
            return
    session.warn(
        f"`{capsule.name}`: the link `{secret.delivery.path}` to the secret `{secret.name}` was "
        f"not made: {reason}; the file is `{path_of(secret)}`"
    )
