"""Copies of the owner's settings hold no credential."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.agent.scrubbing import render_toml, scrub_file, scrub_settings

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


SECRET = "Zq7mK2pXv9LtR4wB"
PLAIN = "correcthorsebattery"


@pytest.mark.parametrize(
    "settings",
    [
        {"mcp": {"x": {"environment": {"STRIPE_KEY": SECRET, "PIN": PLAIN}}}},
        {"envVars": {"A": PLAIN}, "envs": [f"A={PLAIN}"], "server_env": {"A": PLAIN}},
        {"httpHeaders": {"X-Auth": PLAIN}, "request_headers": {"X-Key": PLAIN}},
        {"inputs": [{"name": "API_KEY", "value": PLAIN}, {"key": "x", "value": PLAIN}]},
        {"key": SECRET, "pwd": PLAIN, "pat": PLAIN, "sig": PLAIN, "licenseKey": PLAIN},
        {"password": 12345678, "pin": 12345678},
        {"args": ["-e", f"STRIPE_KEY={SECRET}", "-e", f"PASSWORD={PLAIN}", f"--env=A={PLAIN}"]},
        {"args": ["--header", f"X-Auth: {PLAIN}", f"--header=X-Key: {PLAIN}", "-H", f"A:{PLAIN}"]},
        {"args": ["--header", f"Authorization: Token {PLAIN}"]},
        {
            "args": [
                "--key",
                PLAIN,
                "--pat",
                PLAIN,
                "--auth",
                PLAIN,
                "--pwd",
                PLAIN,
                "--pass",
                PLAIN,
            ]
        },
        {"args": ["-p", SECRET, "-u", f"admin:{PLAIN}", "--password", f"-{SECRET}"]},
        {"args": ["run", "-e", "GITHUB_TOKEN", SECRET]},
        {"args": ["-c", f"exec x --api-key {PLAIN} --pat {PLAIN}; y --token '{PLAIN}'"]},
        {"command": f"npx x --api-key {PLAIN}"},
        {"connectionString": f"Server=x;Uid=a;Pwd={PLAIN};"},
        {"connection": f"AccountName=a;AccountKey={SECRET * 4}==;"},
        {"url": f"https://mcp.zapier.com/api/mcp/s/{SECRET * 3}/mcp"},
        {"url": f"https://hooks.slack.com/services/T0000/B0000/{SECRET}"},
        {"url": f"https://example.org/x?pat={PLAIN}&code={PLAIN}&other={PLAIN}#token={PLAIN}"},
        {"url": f"postgres://u:{PLAIN}/{PLAIN}@example.org/db"},
        {"projects": {f"https://u:{PLAIN}@example.org/": {}, f"sk-ant-{SECRET}": True}},
        {"permissions": {"allow": [f"Bash(curl -H X-Key:{PLAIN})", f"Bash(A_KEY={PLAIN} make:*)"]}},
    ],
)
def test_credential_in_settings_is_removed(settings: dict[str, object]) -> None:
    kept = json.dumps(scrub_settings(settings))
    assert SECRET not in kept
    assert PLAIN not in kept
    assert "12345678" not in kept


def test_ordinary_settings_stay() -> None:
    settings = {
        "permissions": {
            "allow": ["Bash(git push:*)", "Read(~/secrets/**)", "Bash(docker run -p 8080:80 x)"],
            "deny": ["WebFetch(domain:docs.rs)", "mcp__github__get_issue", "Bash(mkdir -p:*)"],
        },
        "model": "claude-sonnet-4-5-20250929",
        "keybindings": [{"key": "ctrl+k", "command": "x"}],
        "maxTokens": 4096,
        "mcpServers": {
            "files": {
                "command": "npx",
                "args": [
                    "-y",
                    "@modelcontextprotocol/server-filesystem@2025.8.21",
                    "~/projects/x2",
                ],
                "timeout": 60000,
            },
            "image": {
                "command": "/home/ada/.npm/_npx/15b07286cbcc3329/node_modules/.bin/server",
                "args": ["ghcr.io/o/r@sha256:" + "ab12" * 16, "-e", "TOKEN", "--auth-mode", "none"],
            },
            "web": {"url": "https://mcp.example.org:8443/v1/sse", "type": "sse"},
            "store": {"command": "/nix/store/8fj3k2l1m4n5b6v7c8x9z0a1s2d3f4g5-node-20/bin/npx"},
        },
        "agent": {"review": {"prompt": "Review.\nRun `make`.", "description": "token: see vault"}},
    }
    assert scrub_settings(settings) == settings


def test_command_line_keeps_its_form() -> None:
    args = ["--header", f"X-Auth: {PLAIN}", "--auth", "--port", "3000", f"--api-key={PLAIN}"]
    allow = [f"Bash(x --pat {PLAIN}:*)", f"Bash(A_KEY={PLAIN} make x)"]
    kept = scrub_settings({"args": args, "allow": allow})
    assert kept["args"] == ["--header", "X-Auth:", "--auth", "--port", "3000", "--api-key="]
    assert kept["allow"] == ["Bash(x --pat [removed]:*)", "Bash(A_KEY=[removed] make x)"]
    assert scrub_settings({"a": ["--api-key", "${KEY}"]}) == {"a": ["--api-key", "${KEY}"]}


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
