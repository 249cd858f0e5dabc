"""The key of the vault in this process: read from where it is, unlocked, or given to the daemon.

A key is kept for as long as the process, outside of any object that may be shown.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.contracts import KeyStore, Vault, VaultKey
from atoll.engine.state.session import Session
from atoll.model.errors import AtollError, SecretUnavailable, StateError

PASSPHRASE = "ATOLL_PASSPHRASE"  # noqa: S105 - the name of a variable
_held: dict[Path, VaultKey] = {}


class VaultLockedError(SecretUnavailable):
    """The key needs a passphrase, and there is no terminal to ask for it."""


def vault_of(session: Session) -> Vault:
    return registry.vault(_directory(session))


def key_store_of(session: Session) -> KeyStore:
    return registry.key_store(_directory(session))


def _directory(session: Session) -> Path:
    return session.home / "secrets"


def hold(home: Path, key: VaultKey) -> None:
    """Uses this key for the vault of a home until `drop`, whatever protects it on disk."""
    _held[home] = key


def drop(home: Path) -> None:
    _held.pop(home, None)


def open_key(session: Session) -> VaultKey:
    """The key, with the passphrase of the owner if it needs one. Raises SecretUnavailable when it
    cannot be read now, StateError when there is none or the passphrase is wrong.
    """
    store = key_store_of(session)
    held = _held.get(session.home)
    if held is not None and held.id == store.key_id():
        return held
    if store.place() != "passphrase":
        return store.load()
    key = store.load(_passphrase(session))
    # Deriving it again takes long.
    hold(session.home, key)
    return key


def is_locked(session: Session) -> bool:
    """Whether `open_key` would need a passphrase that has to be asked for."""
    store = key_store_of(session)
    held = _held.get(session.home)
    if store.place() != "passphrase" or (held is not None and held.id == store.key_id()):
        return False
    return not session.owner.get(PASSPHRASE)


def hand_over(session: Session) -> int | None:
    """A memfd with the key, which is the caller's to close, for a process that has neither the
    owner's environment nor their keyring. None if it needs none, or if it is locked here.
    """
    if key_store_of(session).place() not in ("passphrase", "keyring") or is_locked(session):
        return None
    try:
        key = open_key(session)
    except AtollError:
        return None
    fd = os.memfd_create("atoll-key")
    os.write(fd, json.dumps([key.id, key.secret.hex()]).encode())
    return fd


def take_over(home: Path, fd: int) -> None:
    """Holds the key of `hand_over`, and closes the memfd."""
    with open(fd, "rb") as file:
        # The sender shares the offset.
        file.seek(0)
        key_id, secret = json.loads(file.read())
    hold(home, VaultKey(key_id, bytes.fromhex(secret)))


def ensure_key(session: Session) -> VaultKey:
    """As `open_key`; creates the key with the first value."""
    key_store_of(session).ensure(may_create=vault_of(session).is_empty)
    return open_key(session)


def load_afresh(session: Session) -> VaultKey:
    """As `open_key`, and the passphrase is checked in any case."""
    drop(session.home)
    return open_key(session)


def protect(session: Session, passphrase: str) -> None:
    """Sets, changes or (when empty) removes the passphrase."""
    key = ensure_key(session)
    key_store_of(session).protect(key, passphrase)


def _passphrase(session: Session) -> str:
    given = session.owner.get(PASSPHRASE, "")
    if given:
        return given
    if session.ask_passphrase is not None:
        return session.ask_passphrase()
    raise VaultLockedError("the vault is locked", hint=f"set {PASSPHRASE}, or use a terminal")


def require_vault(session: Session) -> None:
    if key_store_of(session).place() == "none":
        raise StateError("there is no vault yet", hint="atoll secret set NAME")
