"""Secrets of a project on the real vault and store; nothing runs, and no daemon."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from atoll.daemon.secret_watcher import SecretWatcher
from atoll.drivers.contracts import VaultKey
from atoll.drivers.secret import key_store
from atoll.engine.capsule import creation
from atoll.engine.network.rules import policy_of
from atoll.engine.project import settings, trust
from atoll.engine.secret import brokered, resolve, scan, secrets, vault_keys
from atoll.engine.secret.project_secrets import Secrets
from atoll.host import view_client
from atoll.model.adapter import Login
from atoll.model.errors import IsolationError, SecretUnavailable, SpecError, StateError
from atoll.model.secret import (
    BrokerScope,
    Delivery,
    DeliveryKind,
    OriginKind,
    SecretOrigin,
    marker_of,
)

CANARY = b"canary-51f0-value"
VARIABLE = Delivery(DeliveryKind.VARIABLE)
FILE = Delivery(DeliveryKind.FILE)
SCOPE = BrokerScope(("api.example.org",))
BROKER = Delivery(DeliveryKind.BROKER, broker=SCOPE)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing that a process keeps."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setattr(key_store, "_COST", {"n": 1 << 10, "r": 8, "p": 1})
    monkeypatch.setattr(vault_keys, "_held", {})
    monkeypatch.setattr(brokered, "_noted", {})
    monkeypatch.setattr(resolve, "_failures", {})


@pytest.fixture
def session(world, tmp_path):
    owner = {"ATOLL_DAEMON": "off", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    world.session.owner = {**owner, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return world.session


@pytest.fixture
def capsules(world, session):
    """One at level `sandbox`, one at level `clone`."""
    plan = world.plan("x")._replace(level="sandbox")
    [x] = creation.make_capsules(session, world.project, [plan])
    return SimpleNamespace(x=x, low=world.new("low"))


@pytest.fixture
def handle(world, session, capsules):
    def require(name):
        return session.store.require_capsule(world.project.id, name)

    return Secrets(session, world.project, require)


def value_of(world, name):
    secret = secrets.require(world.session, world.project, name)
    return resolve.resolve_value(world.session, secret)


def acts(handle, name=None):
    return [(one.secret, one.capsule, one.act) for one in handle.audit(name)]


def test_life_of_a_typed_secret(world, handle):
    made = handle.set("KEY", CANARY)
    assert (made.state, made.origin, made.delivery, made.grants) == (
        "set", SecretOrigin(OriginKind.TYPED), VARIABLE, (),
    )  # fmt: skip
    assert value_of(world, "KEY") == CANARY
    handle.grant("KEY", "x", ttl_s=3600)
    [status] = handle.statuses()
    [grant] = status.grants
    assert (grant.capsule, grant.is_expired, status.ends_at_once) == ("x", False, False)
    assert 3500 < status.expires_at - time.time() <= 3600
    rotated = handle.rotate("KEY", b"another-value")
    assert (len(rotated.grants), rotated.rotated_at is not None) == (1, True)
    assert value_of(world, "KEY") == b"another-value"
    handle.revoke("KEY", "x")
    with pytest.raises(StateError, match="`KEY` is not granted to `x`"):
        handle.revoke("KEY", "x")
    handle.grant("KEY", "x")
    handle.remove("KEY")
    assert handle.statuses() == []
    assert vault_keys.vault_of(world.session).is_empty()
    assert acts(handle) == [
        ("KEY", None, "set"), ("KEY", "x", "granted"), ("KEY", None, "rotated"),
        ("KEY", "x", "revoked"), ("KEY", "x", "granted"), ("KEY", "x", "revoked"),
        ("KEY", None, "removed"),
    ]  # fmt: skip
    with pytest.raises(StateError, match="there is no secret `KEY`"):
        handle.remove("KEY")


def test_value_is_delivered_only_by_the_settings_that_it_was_stored_for(
    world, session, handle, capsules, monkeypatch
):
    """A command that was killed between vault and database has changed the vault only."""
    handle.set("KEY", b"value-of-a-variable")
    handle.grant("KEY", "x")

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.store, "save_secret", killed)
        with pytest.raises(KeyboardInterrupt):
            handle.set("KEY", CANARY, delivery=BROKER)
    assert handle.require("KEY").delivery == VARIABLE
    with pytest.raises(SecretUnavailable, match="a change was interrupted") as caught:
        value_of(world, "KEY")
    assert "atoll secret set KEY --broker HOST" in str(caught.value.hint)
    with pytest.raises(SecretUnavailable, match="a change was interrupted"):
        handle.rotate("KEY", b"rotated-value")
    handle.set("KEY", CANARY, delivery=BROKER)
    [found] = brokered.brokered(session, capsules.x.id)
    assert [one.value for one in brokered.substitutions(session, found)] == [CANARY.decode()]
    other = BROKER._replace(broker=BrokerScope(("other.example.org",)))
    handle.set("KEY", b"value-of-another-host", delivery=other)
    with pytest.raises(SecretUnavailable, match="a change was interrupted"):
        brokered.substitutions(session, found)


def test_source_that_was_read_before_a_change_replaces_nothing(world, session, handle):
    session.owner["TOKEN"] = "value-of-the-owner"
    handle.set("KEY", origin=SecretOrigin(OriginKind.ENV, "TOKEN"))
    before = secrets.require(session, world.project, "KEY")
    handle.set("KEY", CANARY, delivery=FILE)
    session.owner["TOKEN"] = "later-value"
    with pytest.raises(SecretUnavailable, match="changed at this moment"):
        resolve.resolve_value(session, before)
    assert value_of(world, "KEY") == CANARY


def test_form_stays_unless_one_is_named(handle, capsules):
    handle.set("KEY", CANARY, delivery=BROKER)
    handle.grant("KEY", "x")
    assert handle.set("KEY", b"another-value").delivery == BROKER
    for form in (VARIABLE, FILE):
        for act in (
            lambda form=form: handle.set("KEY", b"third-value", delivery=form),
            lambda form=form: handle.require_settable("KEY", form),
        ):
            with pytest.raises(StateError, match="`KEY` is brokered, and granted to `x`") as caught:
                act()
            assert "atoll secret revoke KEY x" in str(caught.value.hint)
    assert handle.require("KEY").delivery == BROKER
    handle.revoke("KEY", "x")
    assert handle.set("KEY", b"third-value", delivery=FILE).delivery == FILE
    assert handle.set("KEY", b"third-value").delivery == FILE


@pytest.fixture
def views(monkeypatch):
    """The private files of open views, by directory."""
    found = defaultdict[str, set[str]](set)

    def put(directory, files, *, subject):
        found[directory].update(file.name for file in files)
        return True

    def drop(directory, name):
        found[directory].discard(name)

    monkeypatch.setattr(view_client, "put_files", put)
    monkeypatch.setattr(view_client, "drop_file", drop)
    monkeypatch.setattr(view_client, "has_socket", lambda _: True)
    monkeypatch.setattr(view_client, "find_files", lambda directory: frozenset(found[directory]))
    return found


def test_killed_revocation_leaves_no_file(session, handle, capsules, views, monkeypatch):
    handle.set("KEY", CANARY, delivery=FILE)
    handle.grant("KEY", "x")
    place = capsules.x.directory
    assert views[place] == {"secrets/KEY"}

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.store, "drop_secret_grant", killed)
        with pytest.raises(KeyboardInterrupt):
            handle.revoke("KEY", "x")
    assert views[place] == set()
    handle.revoke("KEY", "x")
    # A run that started meanwhile has put it there again.
    views[place] = {"secrets/KEY"}
    with pytest.raises(StateError, match="is not granted"):
        handle.revoke("KEY", "x")
    assert views[place] == set()
    views[place] = {"secrets/KEY"}
    handle.remove("KEY")
    assert views[place] == set()


def test_look_of_the_daemon_removes_files_without_a_grant(world, session, handle, capsules, views):
    for name in ("KEPT", "SENT", "KEY"):
        handle.set(name, CANARY, delivery=BROKER if name == "SENT" else FILE)
        handle.grant(name, "x")
    session.store.drop_secret_grant(secrets.require(session, world.project, "KEY"), capsules.x.id)
    views[capsules.x.directory] |= {"secrets/SENT", "ca.pem"}
    SecretWatcher(session).look()
    assert views[capsules.x.directory] == {"secrets/KEPT", "ca.pem"}


def test_known_values_include_earlier_ones(world, handle):
    assert resolve.known_values(world.session, world.project.id) == ()
    handle.set("A", b"first-value")
    handle.rotate("A", b"second-value")
    handle.set("B", b"other-value")
    assert resolve.known_values(world.session, world.project.id) == (
        ("A", b"second-value"), ("A", b"first-value"), ("B", b"other-value"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A-B",
        "1A",
        "A B",
        "sk-live-canary",
        "HOME",
        "ATOLL_X",
        "A" * 200,
        "é",
        "PATH",
        "LD_PRELOAD",
        "HTTPS_PROXY",
        "SSL_CERT",
        "SSL_CERT_FILE",
    ],
)
def test_unusable_name_is_not_quoted(handle, name):
    with pytest.raises(SpecError, match="the name of the secret") as caught:
        handle.set(name, CANARY)
    assert not name or name not in caught.value.message
    assert "choose a name such as API_KEY" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("value", "delivery", "match"),
    [
        (b"", VARIABLE, "is empty"),
        (b"x" * 70_000, FILE, "larger than 64 KiB"),
        (b"a\0b", VARIABLE, "is not text"),
        (b"\xff", VARIABLE, "is not text"),
        (b"a\nb", BROKER, "characters that a request cannot carry"),
        ("é".encode(), BROKER, "characters that a request cannot carry"),
    ],
)
def test_value_must_fit_its_form(world, handle, value, delivery, match):
    with pytest.raises(SpecError, match=match):
        handle.set("KEY", value, delivery=delivery)
    assert handle.statuses() == []
    assert vault_keys.vault_of(world.session).is_empty()


@pytest.mark.parametrize(
    "delivery",
    [
        Delivery(DeliveryKind.FILE, "/etc/token"),
        Delivery(DeliveryKind.FILE, "token"),
        Delivery(DeliveryKind.FILE, "~/../token"),
        Delivery(DeliveryKind.FILE, "~/"),
        Delivery(DeliveryKind.BROKER),
        Delivery(DeliveryKind.BROKER, broker=BrokerScope(())),
        Delivery(DeliveryKind.BROKER, broker=BrokerScope(("*.example.org",))),
        Delivery(DeliveryKind.BROKER, broker=BrokerScope(("10.0.0.1",))),
        Delivery(DeliveryKind.BROKER, broker=BrokerScope(("API.example.org",))),
        *(
            Delivery(DeliveryKind.BROKER, broker=scope)
            for scope in (
                SCOPE._replace(allow=("nonsense",)),
                SCOPE._replace(deny=("GET /../x",)),
                SCOPE._replace(repository="x"),
                SCOPE._replace(upstream="ftp://x"),
                SCOPE._replace(upstream="http://user:word@host/"),
                SCOPE._replace(upstream="http://host/?query"),
            )
        ),
    ],
)  # fmt: skip
def test_unusable_form(handle, delivery):
    with pytest.raises(SpecError):
        handle.set("KEY", CANARY, delivery=delivery)
    assert handle.statuses() == []


def test_variable_of_the_owner(world, session, handle):
    origin = SecretOrigin(OriginKind.ENV, "TOKEN")
    with pytest.raises(SecretUnavailable, match="`TOKEN` is not set"):
        handle.set("KEY", origin=origin)
    session.owner["TOKEN"] = "first-value"
    handle.set("KEY", origin=origin)
    secret = secrets.require(session, world.project, "KEY")
    session.owner["TOKEN"] = "second-value"
    assert resolve.resolve_value(session, secret) == b"second-value"
    del session.owner["TOKEN"]
    with pytest.raises(SecretUnavailable, match="not set"):
        resolve.resolve_value(session, secret)
    assert resolve.detached_value(session, secret) == b"second-value", "as the daemon has it"
    with pytest.raises(SpecError, match="is read from `env TOKEN`"):
        handle.rotate("KEY", b"typed")


def test_file_of_the_owner(world, session, handle, tmp_path):
    (tmp_path / "token").write_text("first-value\n")
    handle.set("KEY", origin=SecretOrigin(OriginKind.FILE, "~/token"))
    handle.set("WHOLE", origin=SecretOrigin(OriginKind.FILE, "~/token"), delivery=FILE)
    (world.root / "inner").write_text("in the project")
    handle.set("INNER", origin=SecretOrigin(OriginKind.FILE, "inner"))
    assert [value_of(world, name) for name in ("KEY", "WHOLE", "INNER")] == [
        b"first-value", b"first-value\n", b"in the project",
    ]  # fmt: skip
    (tmp_path / "token").write_text("second-value\n")
    secret = secrets.require(session, world.project, "KEY")
    assert resolve.detached_value(session, secret) == b"second-value"
    (tmp_path / "token").unlink()
    with pytest.raises(SecretUnavailable, match="cannot be read"):
        resolve.detached_value(session, secret)


def test_command_is_run_again_after_a_minute(world, session, handle, tmp_path, monkeypatch):
    origin = SecretOrigin(OriginKind.COMMAND, "test ! -e fail && echo x >>n; wc -l <n")
    handle.set("KEY", origin=origin)
    assert [value_of(world, "KEY"), value_of(world, "KEY")] == [b"1", b"1"]
    monkeypatch.setattr(resolve, "COMMAND_FRESH_S", 0)
    assert [value_of(world, "KEY"), value_of(world, "KEY")] == [b"2", b"3"]
    handle.set("KEY", origin=SecretOrigin(OriginKind.COMMAND, "test ! -e fail && echo y"))
    (tmp_path / "fail").touch()
    secret = secrets.require(session, world.project, "KEY")
    for read in (resolve.resolve_value, resolve.detached_value):
        with pytest.raises(SecretUnavailable, match="failed with exit code 1"):
            read(session, secret)


def test_failed_command_is_not_started_again_for_a_minute(
    world, session, handle, tmp_path, monkeypatch
):
    failing = SecretOrigin(OriginKind.COMMAND, "echo x >>n; test ! -e fail && echo value")
    handle.set("KEY", origin=failing)
    (tmp_path / "fail").touch()
    (tmp_path / "n").write_text("")
    monkeypatch.setattr(resolve, "_find_fresh", lambda *_: None)
    secret = secrets.require(session, world.project, "KEY")
    for _ in range(30):
        with pytest.raises(SecretUnavailable, match="failed with exit code 1") as caught:
            resolve.detached_value(session, secret)
        assert caught.value.hint
    assert (tmp_path / "n").read_text() == "x\n"
    # The owner's own commands try it at once, and so does the daemon after a change.
    (tmp_path / "fail").unlink()
    assert resolve.resolve_value(session, secret) == b"value"
    handle.rotate("KEY")
    assert resolve.detached_value(session, secrets.require(session, world.project, "KEY")) == (
        b"value"
    )


def test_command_that_hangs_delays_no_other_secret(world, session, handle, tmp_path):
    os.mkfifo(tmp_path / "gate")
    handle.set("FAST", origin=SecretOrigin(OriginKind.COMMAND, "echo fast"))
    handle.set("SLOW", origin=SecretOrigin(OriginKind.COMMAND, "echo slow"))
    slow = SecretOrigin(OriginKind.COMMAND, "cat gate")
    session.store.save_secret(world.project.id, "SLOW", slow, VARIABLE)
    vault_keys.vault_of(session).remove(world.project.id, "SLOW")
    vault_keys.vault_of(session).remove(world.project.id, "FAST")
    fast, hanging = (secrets.require(session, world.project, one) for one in ("FAST", "SLOW"))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(resolve.detached_value, session, hanging)
        # Opened once the command reads it, which ends only with this block.
        with open(tmp_path / "gate", "w") as gate:
            assert resolve.detached_value(session, fast) == b"fast"
            assert not asked.done()
            gate.write("slow")
        assert asked.result() == b"slow"


def test_command_gets_no_passphrase(world, session, handle):
    session.owner["ATOLL_PASSPHRASE"] = "x"
    handle.set("KEY", origin=SecretOrigin(OriginKind.COMMAND, 'echo "[$ATOLL_PASSPHRASE]"'))
    assert value_of(world, "KEY") == b"[]"


def test_forms_that_a_level_lacks(handle, capsules):
    handle.set("PLAIN", CANARY)
    handle.set("FILED", CANARY, delivery=FILE)
    handle.set("SENT", CANARY, delivery=BROKER)
    handle.grant("PLAIN", "low")
    for name in ("FILED", "SENT"):
        with pytest.raises(IsolationError, match=f"`{name}` is a"):
            handle.grant(name, "low")
        handle.grant(name, "x")
    assert len(handle.audit()) == 6


def test_brokered_grants_and_the_network(world, session, handle, capsules):
    handle.set("KEY", CANARY, delivery=BROKER, ttl_s=3600)
    x = capsules.x
    assert (brokered.brokered(session, x.id), brokered.public_hosts(session, x.id)) == ((), [])
    made = handle.grant("KEY", "x")
    [found] = brokered.brokered(session, x.id)
    assert (found.grant, found.model) == (made, False)
    assert brokered.public_hosts(session, x.id) == ["api.example.org:443"]
    assert "api.example.org" in str(policy_of(session, x.id))
    [one] = brokered.substitutions(session, found)
    assert one == (marker_of(made.placeholder), CANARY.decode())
    assert CANARY.decode() not in repr(one)
    again = handle.grant("KEY", "x", ttl_s=1e-6)
    assert again.placeholder == made.placeholder
    assert brokered.brokered(session, x.id) == (), "expired"
    assert "api.example.org" not in str(policy_of(session, x.id))
    [status] = handle.statuses()
    assert (status.grants[0].is_expired, status.expires_at) == (True, None)


def test_models_hosts_are_known(session, handle, capsules):
    scope = BrokerScope(("api.anthropic.com",))
    handle.set("KEY", CANARY, delivery=Delivery(DeliveryKind.BROKER, broker=scope))
    handle.grant("KEY", "x")
    assert [one.model for one in brokered.brokered(session, capsules.x.id)] == [True]


def test_uses_are_noted_once_a_minute(session, handle, capsules, monkeypatch):
    handle.set("KEY", CANARY, delivery=BROKER)
    handle.grant("KEY", "x")
    [found] = brokered.brokered(session, capsules.x.id)
    for _ in range(3):
        brokered.note_use(session, found)
        brokered.note_use(session, found, refused="GET /admin is not allowed")
    assert acts(handle)[2:] == [("KEY", "x", "used"), ("KEY", "x", "refused")]
    assert handle.statuses()[0].used_at is not None
    monkeypatch.setattr(brokered, "NOTED_S", 0)
    brokered.note_use(session, found)
    assert len(acts(handle)) == 5


def test_passphrase(world, session, handle, capsules):
    handle.set("KEY", CANARY, delivery=BROKER)
    handle.grant("KEY", "x")
    [found] = brokered.brokered(session, capsules.x.id)
    handle.set_passphrase("horse")
    assert handle.has_passphrase
    with pytest.raises(SecretUnavailable, match="the vault is locked") as caught:
        brokered.substitutions(session, found)
    assert "atoll secret unlock" in str(caught.value.hint)
    with pytest.raises(SecretUnavailable):
        resolve.known_values(session, world.project.id)
    assert [one.name for one in handle.statuses()] == ["KEY"], "metadata is not locked"
    session.owner["ATOLL_PASSPHRASE"] = "cow"
    with pytest.raises(StateError, match="wrong"):
        value_of(world, "KEY")
    session.owner["ATOLL_PASSPHRASE"] = "horse"
    assert value_of(world, "KEY") == CANARY
    handle.set_passphrase("")
    del session.owner["ATOLL_PASSPHRASE"]
    vault_keys.drop(session.home)
    assert (handle.has_passphrase, value_of(world, "KEY")) == (False, CANARY)


def test_owner_is_asked_once(world, session, handle):
    asked = []

    def ask():
        asked.append(1)
        return "horse"

    handle.set("KEY", CANARY)
    handle.set_passphrase("horse")
    session.ask_passphrase = ask
    assert [value_of(world, "KEY"), value_of(world, "KEY")] == [CANARY, CANARY]
    assert len(asked) == 1


def test_key_in_memory_is_used_for_its_own_vault_only(world, session, handle):
    handle.set("KEY", CANARY)
    handle.set_passphrase("horse")
    vault_keys.hold(session.home, VaultKey("stale", b"x" * 32))
    with pytest.raises(SecretUnavailable, match="locked"):
        value_of(world, "KEY")


def test_locked_file_is_brokered_all_the_same(session, handle, capsules, tmp_path):
    """Its value is not in the capsule, and does not need the vault."""
    (tmp_path / "token").write_text("first-value\n")
    handle.set("KEY", origin=SecretOrigin(OriginKind.FILE, "~/token"), delivery=BROKER)
    handle.grant("KEY", "x")
    [found] = brokered.brokered(session, capsules.x.id)
    handle.set_passphrase("horse")
    (tmp_path / "token").write_text("second-value\n")
    [one] = brokered.substitutions(session, found)
    assert one.value == "second-value"


DECLARED = """
[secrets.TOKEN]
from = { env = "TOKEN" }
as = { broker = "api.example.org", allow = ["post  /v1/*"], repository = "owner/name.git" }
ttl = "8h"
"""


def test_declared_secret_needs_approval(world, session, handle):
    (world.root / "atoll.toml").write_text(DECLARED)
    session.owner["TOKEN"] = "declared-value"
    [status] = handle.statuses()
    assert (status.name, status.state, status.created_at) == ("TOKEN", "declared", None)
    with pytest.raises(StateError, match="is not approved as it is now") as caught:
        handle.grant("TOKEN", "x")
    assert caught.value.hint == "read it, then: atoll trust"
    with pytest.raises(StateError, match="there is no secret"):
        handle.require("TOKEN")
    config = settings.load_config(world.root, session.owner)
    assert config.file is not None
    trust.trust(session, config.file)
    made = handle.grant("TOKEN", "x")
    scope = BrokerScope(("api.example.org",), ("POST /v1/*",), (), "", "owner/name")
    assert made.secret.delivery.broker == scope
    assert made.expires_at is not None
    assert [one.state for one in handle.statuses()] == ["set"]
    assert acts(handle) == [("TOKEN", None, "set"), ("TOKEN", "x", "granted")]


def test_refused_declaration_leaves_nothing(world, session, handle):
    (world.root / "atoll.toml").write_text(DECLARED)
    config = settings.load_config(world.root, session.owner)
    assert config.file is not None
    trust.trust(session, config.file)
    with pytest.raises(SecretUnavailable, match="`TOKEN` is not set"):
        handle.grant("TOKEN", "x")
    session.owner["TOKEN"] = "declared-value"
    with pytest.raises(IsolationError):
        handle.grant("TOKEN", "low")
    assert [one.state for one in handle.statuses()] == ["declared"]


def test_values_without_settings_are_listed(world, session, handle):
    """After a lost database."""
    handle.set("KEY", CANARY)
    session.store.forget_secret(secrets.require(session, world.project, "KEY"))
    assert [(one.name, one.state) for one in handle.statuses()] == [("KEY", "unnamed")]
    handle.remove("KEY")
    assert handle.statuses() == []


KEY_LOGIN = Login(
    kind="key", title="API key", variable="ANTHROPIC_API_KEY", prefix="sk-ant-api03-",
    hosts=("api.anthropic.com",), allow=("POST /v1/*",), cure="export ANTHROPIC_API_KEY=…",
)  # fmt: skip
FILE_LOGIN = Login(
    kind="json", title="subscription", file="${CLAUDE_CONFIG_DIR:-~/.claude}/x.json",
    tokens=("auth.access",), expiry="auth.expires", hosts=("api.anthropic.com",),
    cure="claude login",
)  # fmt: skip


def test_login_by_key(session, handle, capsules):
    x = capsules.x
    with pytest.raises(SecretUnavailable, match="not logged in"):
        secrets.grant_login(session, x, "claude", KEY_LOGIN)
    session.owner["ANTHROPIC_API_KEY"] = "sk-ant-api03-canary"
    made = secrets.grant_login(session, x, "claude", KEY_LOGIN)
    assert made.secret.name == "login-claude"
    assert secrets.grant_login(session, x, "claude", KEY_LOGIN) == made
    del session.owner["ANTHROPIC_API_KEY"]
    [found] = brokered.brokered(session, x.id)
    assert found.model
    assert [one.value for one in brokered.substitutions(session, found)] == ["sk-ant-api03-canary"]
    handle.set("ANTHROPIC_API_KEY", b"sk-ant-api03-other")
    assert [one.value for one in brokered.substitutions(session, found)] == ["sk-ant-api03-other"]
    assert "canary" not in json.dumps([one._asdict() for one in session.store.secrets("shop-1")])


def test_login_by_file(session, handle, capsules, tmp_path):
    x, place = capsules.x, tmp_path / "elsewhere" / "x.json"
    place.parent.mkdir()
    session.owner["CLAUDE_CONFIG_DIR"] = str(place.parent)
    login = {"access": "sk-canary-token", "expires": (time.time() + 3600) * 1000}
    place.write_text(json.dumps({"auth": login}))
    made = secrets.grant_login(session, x, "claude", FILE_LOGIN)
    del session.owner["CLAUDE_CONFIG_DIR"]
    [found] = brokered.brokered(session, x.id)
    [one] = brokered.substitutions(session, found)
    assert one == (marker_of(made.placeholder, "a"), "sk-canary-token")
    login["access"] = "sk-renewed-token"
    place.write_text(json.dumps({"auth": login}))
    assert [one.value for one in brokered.substitutions(session, found)] == ["sk-renewed-token"]
    assert resolve.known_values(session, "shop-1") == (), "never stored"
    login["expires"] = 1000
    place.write_text(json.dumps({"auth": login}))
    with pytest.raises(SecretUnavailable, match="has expired") as caught:
        brokered.substitutions(session, found)
    assert "claude login" in str(caught.value.hint)
    place.unlink()
    with pytest.raises(SecretUnavailable, match="not logged in"):
        brokered.substitutions(session, found)


def found_in(session, capsule, text):
    search = scan.find_search(session, capsule)
    return None if search is None else search.find(text)


def test_exports_are_searched_for_logins(session, handle, capsules, tmp_path):
    session.owner["ANTHROPIC_API_KEY"] = "sk-ant-api03-canary"
    secrets.grant_login(session, capsules.x, "claude", KEY_LOGIN)
    text = b"key = sk-ant-api03-canary\n"
    assert found_in(session, capsules.low, text) == ("login-claude", 1)
    (tmp_path / ".claude").mkdir()
    place = tmp_path / ".claude" / "x.json"
    place.write_text(json.dumps({"auth": {"access": "sk-token-of-file", "expires": 1000}}))
    with pytest.raises(SecretUnavailable, match="has expired"):
        secrets.grant_login(session, capsules.x, "other", FILE_LOGIN)
    handle.set_passphrase("horse")
    assert found_in(session, capsules.x, text) is None, "no capsule has it, the vault is locked"
    assert found_in(session, capsules.x, b"x\nsk-token-of-file\n") == ("login-other", 2)
    place.write_text("{")
    assert scan.find_search(session, capsules.x) is None


@pytest.mark.parametrize("loss", ["file", "entry"])
def test_value_that_the_vault_lacks_stops_exports_of_who_may_have_it(
    world, session, handle, capsules, loss
):
    handle.set("GIVEN", CANARY)
    handle.set("BROKERED", b"value-of-another", delivery=BROKER)
    handle.grant("GIVEN", "x")
    handle.grant("BROKERED", "x")
    assert found_in(session, capsules.x, CANARY) is not None
    vault = vault_keys.vault_of(session)
    if loss == "file":
        (session.home / "secrets" / "vault.json").unlink()
    else:
        vault.remove(world.project.id, "GIVEN")
    with pytest.raises(SecretUnavailable, match="the vault has no value of `GIVEN`") as caught:
        scan.find_search(session, capsules.x)
    assert "commits of `x` cannot be searched" in caught.value.message
    assert "atoll secret rotate GIVEN" in str(caught.value.hint)
    scan.find_search(session, capsules.low)
    handle.revoke("GIVEN", "x")
    with pytest.raises(SecretUnavailable, match="`GIVEN`"):
        scan.find_search(session, capsules.x)
    handle.rotate("GIVEN", CANARY)
    assert found_in(session, capsules.x, CANARY) is not None


def test_another_login_does_not_change_that_of_other_capsules(session, capsules, world, tmp_path):
    session.owner["ANTHROPIC_API_KEY"] = "sk-ant-api03-canary"
    secrets.grant_login(session, capsules.x, "claude", KEY_LOGIN)
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "x.json").write_text(json.dumps({"auth": {"access": "sk-token"}}))
    plan = world.plan("y")._replace(level="sandbox")
    [y] = creation.make_capsules(session, world.project, [plan])
    made = secrets.grant_login(session, y, "claude", FILE_LOGIN)
    assert made.secret.name == "login-claude-2"
    [found] = brokered.brokered(session, capsules.x.id)
    assert [one.value for one in brokered.substitutions(session, found)] == ["sk-ant-api03-canary"]


def test_another_key_does_not_change_that_of_other_capsules(session, capsules, world):
    plan = world.plan("y")._replace(level="sandbox")
    [y] = creation.make_capsules(session, world.project, [plan])

    def values(capsule):
        [found] = brokered.brokered(session, capsule.id)
        return [one.value for one in brokered.substitutions(session, found)]

    def log_in(capsule, key):
        session.owner["ANTHROPIC_API_KEY"] = key
        return secrets.grant_login(session, capsule, "claude", KEY_LOGIN).secret.name

    assert log_in(capsules.x, "sk-ant-api03-one") == "login-claude"
    assert log_in(y, "sk-ant-api03-two") == "login-claude-2"
    assert values(capsules.x) == ["sk-ant-api03-one"]
    # The only one that uses a key gets another value of it.
    assert log_in(y, "sk-ant-api03-three") == "login-claude-2"
    assert values(y) == ["sk-ant-api03-three"]
    assert log_in(y, "sk-ant-api03-one") == "login-claude-2"
    assert values(y) == ["sk-ant-api03-one"]


def test_next_turn_keeps_the_key_of_the_turns_before(session, capsules, world):
    plan = world.plan("y")._replace(level="sandbox")
    [y] = creation.make_capsules(session, world.project, [plan])
    x = capsules.x

    def log_in(capsule, login=KEY_LOGIN):
        made = secrets.grant_login(session, capsule, "claude", login)
        [found] = brokered.brokered(session, capsule.id)
        [value] = [one.value for one in brokered.substitutions(session, found)]
        return made.secret.name, value

    session.owner["ANTHROPIC_API_KEY"] = "sk-ant-api03-one"
    log_in(x)
    session.owner["ANTHROPIC_API_KEY"] = "sk-ant-api03-two"
    log_in(y)
    del session.owner["ANTHROPIC_API_KEY"]
    before = session.store.secret_grants(y.id)
    assert log_in(y) == ("login-claude-2", "sk-ant-api03-two")
    assert session.store.secret_grants(y.id) == before
    # Nor is the key of one that is gone taken over.
    [of_x] = session.store.secret_grants(x.id)
    session.store.drop_secret_grant(of_x.secret, x.id)
    assert log_in(y) == ("login-claude-2", "sk-ant-api03-two")
    with pytest.raises(SecretUnavailable, match="not logged in"):
        secrets.grant_login(session, x, "claude", KEY_LOGIN)
    # What the broker may do with it follows the adapter.
    narrow = KEY_LOGIN.model_copy(update={"allow": ("POST /v2/*",)})
    assert log_in(y, narrow) == ("login-claude-2", "sk-ant-api03-two")
    [grant] = session.store.secret_grants(y.id)
    assert grant.secret.delivery.broker.allow == ("POST /v2/*",)
    assert grant.placeholder == before[0].placeholder
