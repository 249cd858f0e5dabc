"""The key of the vault: in the keyring of the operating system, or in a file of mode 0600, which a
passphrase may encrypt.

The file `key` says where the key is. Without a passphrase and a keyring it has the key itself:
every process that can read the file can read the vault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll.drivers.contracts import VaultKey
from atoll.drivers.secret import os_keyring, private_json
from atoll.host import files, locks
from atoll.model.errors import SecretUnavailable, StateError

NAME = "key"
VERSION = 1
_FORMAT = "atoll-key"
_SERVICE = "atoll vault"
_KEY_BYTES = 32
_SALT_BYTES = 16
_NONCE_BYTES = 12
_COST = {"n": 1 << 17, "r": 8, "p": 1}
"""128 MiB and about half a second for each attempt at a passphrase."""
_HIGHEST_COST = {"n": 1 << 20, "r": 16, "p": 4}

Stored = dict[str, Any]


class FileKeyStore:
    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def place(self) -> str:
        stored = self._find()
        return "none" if stored is None else str(stored["place"])

    def key_id(self) -> str | None:
        stored = self._find()
        return None if stored is None else str(stored["id"])

    def load(self, passphrase: str = "") -> VaultKey:
        stored = self._find()
        if stored is None:
            raise StateError(
                f"the key of the vault is missing: there is no `{self.path}`",
                hint="restore it from a backup, or give up all stored values: "
                f"rm -r '{self.path.parent}'",
            )
        if stored["place"] == "passphrase":
            return self._unwrap(stored, passphrase)
        if stored["place"] == "keyring":
            text = os_keyring.read(_SERVICE, stored["id"])
            if text is None:
                raise SecretUnavailable(
                    "the key of the vault is not in your keyring any more",
                    hint=f"restore the keyring, or give up all values: rm -r '{self.path.parent}'",
                )
            return VaultKey(stored["id"], self._parse(text))
        return VaultKey(stored["id"], self._parse(stored.get("key")))

    def ensure(self, *, may_create: Callable[[], bool]) -> None:
        files.make_private_directory(self.path.parent)
        with locks.hold_directory(self.path.parent):
            if self._find() is not None:
                return
            if not may_create():
                self.load()
            key = VaultKey(os.urandom(8).hex(), os.urandom(_KEY_BYTES))
            self._place(key)

    def protect(self, key: VaultKey, passphrase: str) -> None:
        with locks.hold_directory(self.path.parent):
            before = self._find()
            if passphrase:
                self._save(_wrap(key, passphrase))
            else:
                self._place(key)
            if before is not None and before["place"] == "keyring" and passphrase:
                os_keyring.remove(_SERVICE, key.id)

    def _place(self, key: VaultKey) -> None:
        """Stores the key in the keyring if there is one, else in the file."""
        if os_keyring.write(_SERVICE, key.id, key.secret.hex()):
            self._save({"id": key.id, "place": "keyring"})
        else:
            self._save({"id": key.id, "place": "file", "key": key.secret.hex()})

    def _find(self) -> Stored | None:
        stored = private_json.load(self.path, form=_FORMAT, version=VERSION)
        if stored is None:
            return None
        places = ("file", "keyring", "passphrase")
        if not isinstance(stored.get("id"), str) or stored.get("place") not in places:
            raise private_json.damaged(self.path, "it does not say where the key is")
        return stored

    def _save(self, stored: Stored) -> None:
        private_json.save(self.path, stored, form=_FORMAT, version=VERSION)

    def _parse(self, text: object) -> bytes:
        try:
            secret = bytes.fromhex(text) if isinstance(text, str) else b""
        except ValueError:
            secret = b""
        if len(secret) != _KEY_BYTES:
            raise private_json.damaged(self.path, "the key is not one of 256 bits")
        return secret

    def _unwrap(self, stored: Stored, passphrase: str) -> VaultKey:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - heavy
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - heavy

        try:
            salt, nonce, wrapped = (
                bytes.fromhex(stored[name]) for name in ("salt", "nonce", "wrapped")
            )
            cost = {name: stored[name] for name in _COST}
        except (KeyError, TypeError, ValueError):
            raise private_json.damaged(self.path, "the encrypted key is incomplete") from None
        if any(type(cost[n]) is not int or not 1 <= cost[n] <= _HIGHEST_COST[n] for n in cost):
            raise private_json.damaged(self.path, "the cost of the passphrase is out of range")
        if not passphrase:
            raise SecretUnavailable("the vault is locked", hint="atoll secret unlock")
        try:
            wrapping = _derive(passphrase, salt, cost)
            secret = AESGCM(wrapping).decrypt(nonce, wrapped, _bound(stored["id"]))
        except InvalidTag:
            raise StateError("the passphrase of the vault is wrong") from None
        except ValueError:
            raise private_json.damaged(self.path, "the encrypted key is not valid") from None
        return VaultKey(stored["id"], secret)


def _wrap(key: VaultKey, passphrase: str) -> Stored:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - heavy

    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    wrapping = _derive(passphrase, salt, _COST)
    return {
        "id": key.id,
        "place": "passphrase",
        **_COST,
        "salt": salt.hex(),
        "nonce": nonce.hex(),
        "wrapped": AESGCM(wrapping).encrypt(nonce, key.secret, _bound(key.id)).hex(),
    }


def _derive(passphrase: str, salt: bytes, cost: Mapping[str, int]) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt  # noqa: PLC0415 - heavy

    derivation = Scrypt(salt=salt, length=_KEY_BYTES, **cost)
    return derivation.derive(passphrase.encode("utf-8", "surrogateescape"))


def _bound(key_id: str) -> bytes:
    return f"{_FORMAT} {VERSION} {key_id}".encode()
