"""The owner's logins, and what a capsule holds instead of them.

The law of every test here: no real value is in what goes inside, in a message, or in a `repr`.
"""

from __future__ import annotations

import base64
import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.drivers import registry
from atoll.drivers.agent import logins, web_tokens
from atoll.model.adapter import Login
from atoll.model.errors import StateError
from atoll.model.secret import make_placeholder, marker_of

PLACEHOLDER = make_placeholder(bytes(range(10)))
SECRET = "realvalue0123456789"
YEAR_S = 365 * 86_400


def jwt(**claims):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'RS256', 'kid': 'k', 'typ': 'JWT'})}.{part(claims)}.{SECRET}"


def claims_of(token):
    found = web_tokens.find_web_token(token)
    assert found is not None
    return found.claims


@pytest.fixture
def home(tmp_path):
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def owner(home):
    return {"HOME": str(home)}


def put(home, path, document, mode=0o600):
    place = home / path
    place.parent.mkdir(parents=True, exist_ok=True)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    place.write_bytes(text)
    place.chmod(mode)
    return place


def login_of(adapter, title):
    spec = registry.adapters({})[adapter]
    return next(login for login in spec.logins if login.title == title)


def through(login, owner):
    """What is found, and the document that the capsule gets."""
    found = logins.find_login(login, owner)
    assert found is not None
    assert SECRET not in repr(found)
    assert SECRET not in found.kept
    inside = logins.inside_login(login, found, PLACEHOLDER)
    for file in inside.files:
        assert SECRET.encode() not in file.content
    assert SECRET not in repr(inside)
    return found, inside


def document_of(inside, path):
    return json.loads(next(file.content for file in inside.files if file.path == path))


def sample(adapter, title, home, *, expires_at):
    """A login file as the program writes it."""
    access = f"sk-ant-oat01-{SECRET}"
    match adapter, title:
        case "claude", "subscription":
            put(home, ".claude/.credentials.json", {
                "claudeAiOauth": {
                    "accessToken": access,
                    "refreshToken": f"sk-ant-ort01-{SECRET}",
                    "expiresAt": int(expires_at * 1000),
                    "scopes": ["user:inference", "user:profile"],
                    "subscriptionType": "max",
                    "somethingNew": SECRET,
                },
                "mcpOAuth": {"server|1": {"accessToken": SECRET, "clientSecret": SECRET}},
            })  # fmt: skip
        case "codex", "subscription":
            auth = {"chatgpt_plan_type": "pro", "chatgpt_account_id": "acc", "id_token": SECRET}
            put(home, ".codex/auth.json", {
                "auth_mode": "chatgpt",
                "OPENAI_API_KEY": None,
                "tokens": {
                    "id_token": jwt(email="me@example.org", exp=1, auth=auth),
                    "access_token": jwt(exp=int(expires_at), aud=["x"], auth=auth),
                    "refresh_token": f"rt_{SECRET}",
                    "account_id": "acc",
                },
                "last_refresh": "2025-08-06T20:41:36.232376Z",
                "agent_identity": SECRET,
            })  # fmt: skip
        case "gemini", "Google account":
            put(home, ".gemini/oauth_creds.json", {
                "access_token": f"ya29.{SECRET}",
                "refresh_token": f"1//{SECRET}",
                "id_token": jwt(email="me@example.org", exp=1),
                "scope": "https://www.googleapis.com/auth/cloud-platform",
                "token_type": "Bearer",
                "expiry_date": int(expires_at * 1000),
            })  # fmt: skip
        case "qwen", "Qwen account":
            put(home, ".qwen/oauth_creds.json", {
                "access_token": SECRET,
                "refresh_token": SECRET,
                "token_type": "Bearer",
                "resource_url": "portal.qwen.ai",
                "expiry_date": int(expires_at * 1000),
            })  # fmt: skip
        case "opencode", "ChatGPT subscription of opencode auth":
            put(home, ".local/share/opencode/auth.json", {
                "openai": {
                    "type": "oauth",
                    "access": jwt(exp=int(expires_at)),
                    "refresh": SECRET,
                    "expires": int(expires_at * 1000),
                    "accountId": "acc",
                },
                "openrouter": {"type": "api", "key": f"sk-or-v1-{SECRET}"},
            })  # fmt: skip
        case _:
            raise AssertionError((adapter, title))


RENEWABLE = [
    ("claude", "subscription"),
    ("codex", "subscription"),
    ("gemini", "Google account"),
    ("qwen", "Qwen account"),
    ("opencode", "ChatGPT subscription of opencode auth"),
]


@pytest.mark.parametrize(("adapter", "title"), RENEWABLE)
def test_renewable_login(adapter, title, home, owner):
    login, ahead = login_of(adapter, title), time.time() + 3600
    assert logins.find_login(login, owner) is None
    sample(adapter, title, home, expires_at=ahead)
    found, inside = through(login, owner)
    assert list(found.values) == ["a"]
    assert SECRET in found.values["a"]
    assert found.expires_at == pytest.approx(ahead, abs=1)
    assert not found.is_expired
    assert marker_of(PLACEHOLDER, "a").encode() in inside.files[0].content
    assert login.renew == found.cure


@pytest.mark.parametrize(("adapter", "title"), RENEWABLE)
def test_expired_login_is_found_with_its_cure(adapter, title, home, owner):
    sample(adapter, title, home, expires_at=time.time() - 5)
    login = login_of(adapter, title)
    found, _ = through(login, owner)
    assert found.is_expired
    assert found.cure == login.renew


def test_claude_credentials(home, owner):
    sample("claude", "subscription", home, expires_at=time.time() + 60)
    found, inside = through(login_of("claude", "subscription"), owner)
    assert found.account == "max"
    assert document_of(inside, ".claude/.credentials.json") == {
        "claudeAiOauth": {
            "accessToken": f"sk-ant-oat01-{marker_of(PLACEHOLDER, 'a')}",
            "refreshToken": "sk-ant-ort01-atoll-keeps-this-outside",
            "expiresAt": pytest.approx((time.time() + YEAR_S) * 1000, abs=60_000),
            "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max",
        }
    }


def test_codex_tokens_keep_the_claims_that_it_reads(home, owner):
    sample("codex", "subscription", home, expires_at=time.time() + 60)
    found, inside = through(login_of("codex", "subscription"), owner)
    assert found.account == "me@example.org"
    document = document_of(inside, ".codex/auth.json")
    tokens = document.pop("tokens")
    renewed = document.pop("last_refresh")
    assert document == {"auth_mode": "chatgpt"}
    assert renewed.endswith("Z")
    assert renewed[:4] >= "2026"
    assert tokens["account_id"] == "acc"
    assert tokens["refresh_token"] == "rt_atoll-keeps-this-outside"
    access = claims_of(tokens["access_token"])
    assert access["auth"] == {"chatgpt_plan_type": "pro", "chatgpt_account_id": "acc"}
    assert access["exp"] == pytest.approx(time.time() + YEAR_S, abs=60)
    assert claims_of(tokens["id_token"])["email"] == "me@example.org"
    assert tokens["access_token"].rpartition(".")[2].startswith(marker_of(PLACEHOLDER, "a"))
    assert PLACEHOLDER not in tokens["id_token"]
    for name in ("access_token", "id_token"):
        assert all(len(part) % 4 != 1 for part in tokens[name].split("."))


def test_place_that_a_variable_moves(home, owner, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    sample("codex", "subscription", elsewhere, expires_at=time.time() + 60)
    moved = {**owner, "CODEX_HOME": str(elsewhere / ".codex")}
    login = login_of("codex", "subscription")
    assert logins.find_login(login, owner) is None
    _, inside = through(login, moved)
    assert inside.files[0].path == ".codex/auth.json"


def test_key(owner):
    login = login_of("claude", "API key")
    assert logins.find_login(login, owner) is None
    assert logins.find_login(login, {**owner, "ANTHROPIC_API_KEY": " "}) is None
    found, inside = through(login, {**owner, "ANTHROPIC_API_KEY": f"{SECRET}\n"})
    assert found.values == {"": SECRET}
    assert inside.key == f"sk-ant-api03-{marker_of(PLACEHOLDER)}"
    assert inside.env == {"ANTHROPIC_API_KEY": inside.key}
    approved = document_of(inside, ".claude.json")["customApiKeyResponses"]["approved"]
    assert approved == [inside.key[-20:]]


def test_key_under_another_name(owner):
    found, inside = through(
        login_of("goose", "Gemini API key"), {**owner, "GEMINI_API_KEY": SECRET}
    )
    assert found.values == {"": SECRET}
    assert inside.env["GOOGLE_API_KEY"] == inside.env["GEMINI_API_KEY"] == inside.key
    assert inside.env["GOOSE_PROVIDER"] == "google"


@pytest.mark.parametrize(
    "value", ["two words", "line\r\nHeader: x", "\x1b[31m", "ключ", "x" * 20_000]
)
def test_key_that_fits_in_no_header(owner, value):
    with pytest.raises(StateError, match="not a usable key") as raised:
        logins.find_login(login_of("claude", "API key"), {**owner, "ANTHROPIC_API_KEY": value})
    assert value not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b'"text"',
        b"{",
        b"[" * 100_000,
        b'{"claudeAiOauth": {"accessToken": 7' + b"7" * 5000 + b"}}",
        b'{"claudeAiOauth": {"accessToken": ["realvalue0123456789"]}}',
        b'{"claudeAiOauth": {"accessToken": "realvalue0123456789\\r\\nX: y"}}',
        b"{" + b" " * (1 << 20) + b"}",
    ],
)
def test_damaged_file(home, owner, text):
    place = put(home, ".claude/.credentials.json", text)
    with pytest.raises(StateError) as raised:
        logins.find_login(login_of("claude", "subscription"), owner)
    assert str(place) in raised.value.message
    assert SECRET not in raised.value.message
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "document", [{}, {"claudeAiOauth": 1}, {"claudeAiOauth": {"accessToken": ""}}]
)
def test_file_without_a_login(home, owner, document):
    put(home, ".claude/.credentials.json", document)
    assert logins.find_login(login_of("claude", "subscription"), owner) is None


@pytest.mark.parametrize("expiry", [None, True, "soon", -1e300, 1e300, [], float("nan"), 10**400])
def test_strange_expiry_is_not_copied(home, owner, expiry):
    values = {"accessToken": SECRET, "refreshToken": SECRET, "expiresAt": expiry}
    try:
        text = json.dumps({"claudeAiOauth": values})
    except ValueError:
        text = json.dumps({"claudeAiOauth": {**values, "expiresAt": "N"}}).replace('"N"', "1" * 401)
    put(home, ".claude/.credentials.json", text.encode())
    found, inside = through(login_of("claude", "subscription"), owner)
    assert found.expires_at is None
    assert not found.is_expired
    inner = document_of(inside, ".claude/.credentials.json")["claudeAiOauth"]
    assert "expiresAt" not in inner


def test_links_are_followed_where_only_the_owner_can_change_them(home, owner, tmp_path):
    login = login_of("claude", "subscription")
    sample("claude", "subscription", tmp_path / "dotfiles", expires_at=time.time() + 60)
    (home / ".claude").mkdir()
    (home / ".claude" / ".credentials.json").symlink_to(
        tmp_path / "dotfiles" / ".claude" / ".credentials.json"
    )
    assert logins.find_login(login, owner) is not None
    (tmp_path / "dotfiles").chmod(0o777)
    with pytest.raises(StateError, match="others can replace it"):
        logins.find_login(login, owner)


def test_file_of_another_user(home, owner):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    place = put(home, ".claude/.credentials.json", {"claudeAiOauth": {"accessToken": SECRET}})
    os.chown(place, 12_345, 12_345)
    with pytest.raises(StateError, match="belongs to another user"):
        logins.find_login(login_of("claude", "subscription"), owner)


def test_fifo_does_not_block(home, owner):
    (home / ".claude").mkdir()
    os.mkfifo(home / ".claude" / ".credentials.json", 0o600)
    with pytest.raises(StateError, match="not a regular file"):
        logins.find_login(login_of("claude", "subscription"), owner)


def test_no_home():
    assert logins.find_login(login_of("claude", "subscription"), {}) is None
    assert logins.find_login(login_of("claude", "subscription"), {"HOME": "relative"}) is None


FIRST = Login(
    kind="json", title="t", file="~/.x.json", tokens=("tokens.*.key",), keep=("tokens",),
    hosts=("api.example.org",), cure="x login",
)  # fmt: skip


def test_star_is_the_first_entry(home, owner):
    login = FIRST.model_copy(update={"keep": ("kind",)})
    put(home, ".x.json", {"kind": "k", "tokens": {"https://a.b": {"key": f"gho_{SECRET}"}}})
    _, inside = through(login, owner)
    assert document_of(inside, ".x.json") == {
        "kind": "k",
        "tokens": {"https://a.b": {"key": f"gho_{marker_of(PLACEHOLDER, 'a')}"}},
    }


def test_kept_tables_lose_what_looks_like_a_credential(home, owner):
    put(home, ".x.json", {
        "tokens": {"one": {"key": SECRET}},
        "keep": {
            "plan": "pro", "apiKey": SECRET, "api_key": SECRET, "list": [{"secret": SECRET}],
            "nested": {"refreshToken": SECRET, "password": SECRET, "region": "eu"},
            "odd": jwt(a=1),
        },
    })  # fmt: skip
    _, inside = through(FIRST.model_copy(update={"keep": ("keep",)}), owner)
    kept = document_of(inside, ".x.json")["keep"]
    assert kept == {"plan": "pro", "list": [{}], "nested": {"region": "eu"}}


def test_built_in_logins_copy_nothing_that_holds_a_token():
    for name, spec in registry.adapters({}).items():
        for login in spec.logins:
            secret = (*login.tokens, *login.unused, *login.refreshable)
            for kept in login.keep:
                assert not any(f"{key}.".startswith(f"{kept}.") for key in secret), name


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
KEYS = st.sampled_from(
    ["claudeAiOauth", "accessToken", "refreshToken", "expiresAt", "scopes", "subscriptionType", "x"]
)
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
        max_leaves=12,
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(document=DOCUMENTS)
def test_any_document(tmp_path_factory, document):
    home = tmp_path_factory.mktemp("home")
    put(home, ".claude/.credentials.json", document)
    login = login_of("claude", "subscription")
    try:
        found = logins.find_login(login, {"HOME": str(home)})
    except StateError:
        return
    if found is not None:
        inside = logins.inside_login(login, found, PLACEHOLDER)
        assert found.values["a"] not in (PLACEHOLDER, "")
        assert marker_of(PLACEHOLDER, "a").encode() in inside.files[0].content


@given(claims=st.dictionaries(st.text(max_size=20), LEAVES, max_size=6))
def test_any_claims(claims):
    text = jwt().split(".")
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    token = web_tokens.find_web_token(f"{text[0]}.{payload}.{SECRET}")
    if token is None:
        return
    made = web_tokens.placeholder_token(token, marker_of(PLACEHOLDER, "a"), expires_at=5)
    again = web_tokens.find_web_token(made)
    assert again is not None
    assert SECRET not in made
    assert again.claims.get("exp") in (None, 5)


@given(text=st.text())
def test_any_text_is_a_token_or_none(text):
    web_tokens.find_web_token(text)
