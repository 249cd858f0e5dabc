"""Copies of the owner's settings hold no credential."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.agent.scrubbing import render_toml, scrub_file, scrub_settings, scrub_text

CANARY = "c4n4ry0123456789abcdef"
SERVERS = {
    "mcpServers": {
        "db": {
            "command": "db-mcp",
            "args": ["--api-key", CANARY, "--port", "3000", f"--token={CANARY}", "-v"],
            "env": {"DB_URL": f"postgres://u:{CANARY}@h/db"},
        },
        "web": {
            "url": f"https://u:{CANARY}@example.org/mcp?api_key={CANARY}",
            "headers": {"Authorization": f"Bearer {CANARY}"},
            "apiKey": CANARY,
            "type": "http",
        },
    },
    "maxTokens": 4096,
    "theme": "dark",
}


def test_settings_of_servers_lose_their_credentials() -> None:
    kept = scrub_settings(SERVERS)
    assert CANARY not in json.dumps(kept)
    assert kept["theme"] == "dark"
    assert kept["maxTokens"] == 4096
    assert kept["mcpServers"]["db"]["command"] == "db-mcp"
    assert kept["mcpServers"]["db"]["args"] == ["--api-key", "", "--port", "3000", "--token=", "-v"]
    assert kept["mcpServers"]["web"]["type"] == "http"


def test_only_the_named_keys_are_kept() -> None:
    content = json.dumps({"theme": "dark", "oauthAccount": {"x": 1}}).encode()
    kept = scrub_file("settings.json", content, only=("theme",))
    assert kept is not None
    assert json.loads(kept) == {"theme": "dark"}


@pytest.mark.parametrize(
    "text",
    [
        f"my key is sk-ant-{CANARY}",
        f"ghp_{CANARY}{CANARY}",
        f"curl -H 'Authorization: Bearer {CANARY}'",
        f"password: {CANARY}",
        f'api_key = "{CANARY}"',
        f"https://owner:{CANARY}@example.org/x",
        f"https://example.org/?access_token={CANARY}&x=1",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ{CANARY}.{CANARY}",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
    ],
)
def test_credential_in_a_memory_file_is_replaced(text: str) -> None:
    assert CANARY not in scrub_text(f"Before.\n{text}\nAfter.")
    assert scrub_text(f"Before.\n{text}\nAfter.").endswith("\nAfter.")


def test_ordinary_text_stays() -> None:
    text = "# Rules\n\n- run `make test`\n- token: ask the owner\n- see https://example.org/a?b=c\n"
    assert scrub_text(text) == text


def test_file_that_is_not_understood_is_left_out() -> None:
    assert scrub_file("settings.json", b"{") is None
    assert scrub_file("config.toml", b"= 1") is None
    assert scrub_file("image.png", b"\x89PNG\xff") is None
    assert scrub_file("deep.json", b"[" * 100_000) is None


keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.text(
        st.characters(exclude_categories=["Cs"]), max_size=8
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(keys, values, max_size=4))
def test_toml_is_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(render_toml(table)) == table
