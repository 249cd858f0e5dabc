from __future__ import annotations

import json

import pytest

from atoll.drivers.secret import key_store
from atoll.drivers.secret.key_store import FileKeyStore
from atoll.model.errors import SecretUnavailable, StateError


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    # The real cost takes half a second for each attempt; one test has it.
    monkeypatch.setattr(key_store, "_COST", {"n": 1 << 10, "r": 8, "p": 1})
    return tmp_path / "secrets"


@pytest.fixture
def store(place):
    made = FileKeyStore(place)
    made.ensure(may_create=lambda: True)
    return made


def change(store, **fields):
    store.path.write_text(json.dumps({**json.loads(store.path.read_text()), **fields}))


def test_there_is_none_at_first(place):
    store = FileKeyStore(place)
    assert (store.place(), store.key_id()) == ("none", None)
    with pytest.raises(StateError, match="key of the vault is missing"):
        store.load()
    assert not place.exists()


def test_key_is_made_once(store):
    key = store.load()
    assert (store.place(), store.key_id(), len(key.secret)) == ("file", key.id, 32)
    store.ensure(may_create=lambda: False)
    assert store.load() == key
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert key.secret.hex() not in repr(key)


def test_lost_key_of_a_vault_with_values_is_not_replaced(place):
    store = FileKeyStore(place)
    with pytest.raises(StateError, match="key of the vault is missing") as caught:
        store.ensure(may_create=lambda: False)
    assert f"rm -r '{place}'" in str(caught.value.hint)
    assert store.place() == "none"


def test_passphrase(store):
    key = store.load()
    store.protect(key, "correct horse")
    assert store.place() == "passphrase"
    assert key.secret.hex() not in store.path.read_text()
    assert store.load("correct horse") == key
    with pytest.raises(StateError, match="passphrase of the vault is wrong"):
        store.load("correct horsf")
    with pytest.raises(SecretUnavailable, match="the vault is locked") as caught:
        store.load()
    assert caught.value.hint == "atoll secret unlock"


def test_passphrase_is_changed_and_removed(store):
    key = store.load()
    store.protect(key, "first")
    store.protect(key, "sécond\udcff")
    with pytest.raises(StateError, match="wrong"):
        store.load("first")
    assert store.load("sécond\udcff") == key
    store.protect(key, "")
    assert (store.place(), store.load()) == ("file", key)


def test_real_cost_is_that_of_the_recommendations(place, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    store = FileKeyStore(place)
    store.ensure(may_create=lambda: True)
    key = store.load()
    store.protect(key, "x")
    assert json.loads(store.path.read_text())["n"] == 1 << 17
    assert store.load("x") == key


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"version": 9}, "newer Atoll"),
        ({"place": "elsewhere"}, "does not say where"),
        ({"id": 5}, "does not say where"),
        ({"key": "00"}, "not one of 256 bits"),
        ({"key": "zz" * 32}, "not one of 256 bits"),
        ({"key": None}, "not one of 256 bits"),
    ],
)
def test_damaged_key_file(store, fields, match):
    change(store, **fields)
    with pytest.raises(StateError, match=match):
        store.load()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"n": 1 << 30}, "out of range"),
        ({"n": True}, "out of range"),
        ({"r": 0}, "out of range"),
        ({"p": "1"}, "out of range"),
        ({"n": 1000}, "not valid"),
        ({"salt": "zz"}, "incomplete"),
        ({"wrapped": None}, "incomplete"),
        ({"nonce": ""}, "not valid"),
        ({"wrapped": ""}, "wrong|not valid"),
        ({"id": "other"}, "wrong"),
    ],
)
def test_damaged_encrypted_key(store, fields, match):
    """A hostile file costs neither memory nor time."""
    store.protect(store.load(), "x")
    change(store, **fields)
    with pytest.raises(StateError, match=match):
        store.load("x")


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o601])
def test_key_file_that_others_can_read_is_refused(store, mode):
    store.path.chmod(mode)
    with pytest.raises(StateError, match="can be read or written by others"):
        store.load()
    with pytest.raises(StateError, match="can be read or written by others"):
        store.ensure(may_create=lambda: True)


BACKEND = '''
import json, os
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError

class FileKeyring(KeyringBackend):
    """A working keyring, in a file."""

    priority = 5
    path = {path!r}

    def _load(self):
        if os.path.exists(self.path + ".locked"):
            raise KeyringLocked("no")
        try:
            with open(self.path) as stream:
                return json.load(stream)
        except FileNotFoundError:
            return {{}}

    def _save(self, entries):
        with open(self.path, "w") as stream:
            json.dump(entries, stream)

    def get_password(self, service, username):
        return self._load().get(service + "|" + username)

    def set_password(self, service, username, password):
        self._save({{**self._load(), service + "|" + username: password}})

    def delete_password(self, service, username):
        entries = self._load()
        if entries.pop(service + "|" + username, None) is None:
            raise PasswordDeleteError("none")
        self._save(entries)
'''


@pytest.fixture
def keyring_file(tmp_path, monkeypatch):
    """A keyring as the library finds one, in place of the desktop's."""
    import keyring  # noqa: PLC0415 - slow

    path = tmp_path / "keyring.json"
    module: dict[str, object] = {"__name__": "file_keyring"}
    exec(BACKEND.format(path=str(path)), module)
    before = keyring.get_keyring()
    keyring.set_keyring(module["FileKeyring"]())  # type: ignore[operator]
    yield path
    keyring.set_keyring(before)


def test_keyring_holds_the_key(place, keyring_file):
    store = FileKeyStore(place)
    store.ensure(may_create=lambda: True)
    key = store.load()
    assert store.place() == "keyring"
    assert key.secret.hex() not in store.path.read_text()
    assert list(json.loads(keyring_file.read_text()).values()) == [key.secret.hex()]
    store.protect(key, "x")
    assert (store.place(), json.loads(keyring_file.read_text())) == ("passphrase", {})
    assert store.load("x") == key
    store.protect(key, "")
    assert (store.place(), store.load()) == ("keyring", key)


def test_keyring_without_the_key(place, keyring_file):
    store = FileKeyStore(place)
    store.ensure(may_create=lambda: True)
    keyring_file.write_text("{}")
    with pytest.raises(SecretUnavailable, match="not in your keyring any more"):
        store.load()


def test_locked_keyring(place, keyring_file):
    store = FileKeyStore(place)
    store.ensure(may_create=lambda: True)
    keyring_file.with_name("keyring.json.locked").touch()
    with pytest.raises(SecretUnavailable, match="your keyring refuses: KeyringLocked"):
        store.load()
    store.path.unlink()
    store.ensure(may_create=lambda: True)
    assert store.place() == "file", "a keyring that refuses is not used"


def test_unreachable_keyring(place, keyring_file):
    import keyring  # noqa: PLC0415 - slow
    from keyring.backends import fail  # noqa: PLC0415 - slow

    store = FileKeyStore(place)
    store.ensure(may_create=lambda: True)
    keyring.set_keyring(fail.Keyring())
    with pytest.raises(SecretUnavailable, match="cannot be reached"):
        store.load()
