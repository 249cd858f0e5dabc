"""The vault: one file in which each value is encrypted with AES-256-GCM.

The associated data of a value is the version of the format, the key, the project, the name, the
revision of its settings and the time, so that none of them can be changed and no two values
exchanged. Names and times are readable; the length of a value is rounded up.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.drivers.contracts import KeptValue, VaultKey
from atoll.drivers.secret import private_json
from atoll.host import files, locks
from atoll.model.errors import StateError

NAME = "vault.json"
VERSION = 1
_FORMAT = "atoll-vault"
_NONCE_BYTES = 12
_EARLIER = 3
_BLOCK_BYTES = 64

Entry = dict[str, Any]


class FileVault:
    """Changed by one process at a time; a reader sees the file before or after a change."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def names(self, project: str) -> list[str]:
        return sorted(self._load().get(project, {}))

    def is_empty(self) -> bool:
        return not any(self._load().values())

    def find(self, key: VaultKey, project: str, name: str) -> KeptValue | None:
        entry = self._load().get(project, {}).get(name)
        return None if entry is None else self._open(key, project, name, entry)

    def put(
        self,
        key: VaultKey,
        project: str,
        name: str,
        value: bytes,
        *,
        revision: str = "",
        is_change: bool = False,
    ) -> bool:
        files.make_private_directory(self.path.parent)
        with locks.hold_directory(self.path.parent):
            entries = self._load()
            own = entries.setdefault(project, {})
            before = self._open(key, project, name, own[name]) if name in own else None
            if before is not None and before.revision != revision and not is_change:
                return False
            own[name] = self._seal(key, project, name, _following(before, value, revision))
            self._save(entries)
            return True

    def remove(self, project: str, name: str) -> bool:
        if not self.path.parent.is_dir():
            return False
        with locks.hold_directory(self.path.parent):
            entries = self._load()
            found = entries.get(project, {}).pop(name, None)
            if found is not None:
                self._save({place: own for place, own in entries.items() if own})
            return found is not None

    def _load(self) -> dict[str, dict[str, Entry]]:
        found = private_json.load(self.path, form=_FORMAT, version=VERSION)
        entries = {} if found is None else found.get("entries")
        if not isinstance(entries, dict) or not all(map(_is_project, entries.values())):
            raise private_json.damaged(self.path, "its entries are not as Atoll writes them")
        return entries

    def _save(self, entries: Mapping[str, Mapping[str, Entry]]) -> None:
        private_json.save(self.path, {"entries": entries}, form=_FORMAT, version=VERSION)

    def _seal(self, key: VaultKey, project: str, name: str, kept: KeptValue) -> Entry:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - heavy

        values = [base64.b64encode(value).decode() for value in (kept.value, *kept.earlier)]
        plain = json.dumps(values).encode()
        plain += b" " * (-len(plain) % _BLOCK_BYTES)
        nonce = os.urandom(_NONCE_BYTES)
        bound = _bound(key.id, project, name, kept.stored_at, kept.revision)
        sealed = AESGCM(key.secret).encrypt(nonce, plain, bound)
        return {
            "key": key.id,
            "at": kept.stored_at,
            "revision": kept.revision,
            "nonce": base64.b64encode(nonce).decode(),
            "sealed": base64.b64encode(sealed).decode(),
        }

    def _open(self, key: VaultKey, project: str, name: str, entry: Entry) -> KeptValue:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - heavy
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - heavy

        if entry["key"] != key.id:
            raise StateError(
                f"the value of `{name}` in `{self.path}` was encrypted with another key than "
                f"`{self.path.parent / 'key'}` has now",
                hint="restore the key file from a backup, or set the secret again: "
                f"atoll secret rm {name}, then: atoll secret set {name}",
            )
        bound = _bound(entry["key"], project, name, entry["at"], entry["revision"])
        try:
            nonce = base64.b64decode(entry["nonce"], validate=True)
            sealed = base64.b64decode(entry["sealed"], validate=True)
            values = json.loads(AESGCM(key.secret).decrypt(nonce, sealed, bound))
            first, *earlier = [base64.b64decode(value) for value in values]
        except (InvalidTag, ValueError, TypeError):
            raise StateError(
                f"the value of `{name}` in `{self.path}` was changed by something else than Atoll",
                hint=f"atoll secret rm {name}, then: atoll secret set {name}",
            ) from None
        return KeptValue(first, entry["at"], entry["revision"], tuple(earlier))


def _following(before: KeptValue | None, value: bytes, revision: str) -> KeptValue:
    """`value` as it is stored now, after what was stored before."""
    earlier: tuple[bytes, ...] = ()
    if before is not None:
        known = [old for old in (before.value, *before.earlier) if old != value]
        earlier = tuple(known[:_EARLIER])
    return KeptValue(value, time.time(), revision, earlier)


def _bound(key_id: str, project: str, name: str, at: float, revision: str) -> bytes:
    return json.dumps([_FORMAT, VERSION, key_id, project, name, at, revision]).encode()


def _is_project(own: object) -> bool:
    return isinstance(own, dict) and all(map(_is_entry, own.values()))


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), str) for key in ("key", "revision", "nonce", "sealed"))
        and isinstance(entry.get("at"), int | float)
    )
