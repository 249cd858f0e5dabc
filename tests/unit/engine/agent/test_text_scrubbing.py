"""Texts lose what looks like a credential, stay as they are otherwise, and cost linear time."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.engine.agent import text_scrubbing
from atoll.engine.agent.text_scrubbing import scrub_text

CANARY = "c4n4ry0123456789abcdef"
SECRET = "Zq7mK2pXv9LtR4wB"
PLAIN = "correcthorsebattery"
PREFIXES = re.findall(
    r"\S+",
    "xai- tvly- SG. xapp-1- ya29. 1//0g lin_api_ hvs. ATATT3x nvapi- gsk_ pplx- sbp_ dckr_pat_"
    " glsa_ figd_ dop_v1_ hf_ npm_ AIza",
)


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
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{CANARY}\n-----END PGP PRIVATE KEY BLOCK-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY * 2}\n{CANARY}",
        f"PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 14\n{CANARY * 2}",
        f"b3BlbnNzaC1rZXktdjEAAAAABG5vbmU{CANARY}\n{CANARY * 3}",
        f"AGE-SECRET-KEY-1{CANARY.upper()}{CANARY}",
        *(f"see {prefix}{SECRET * 3}" for prefix in PREFIXES),
        f"https://api.telegram.org/bot123456789:AA{SECRET * 2}",
        f"password: {PLAIN}",
        f"export DB_PASSWORD={PLAIN}",
        f"export STRIPE_KEY={SECRET}",
        f'password="pa$${CANARY}"',
        f"password=ab%40{CANARY}",
        f"mytool --token {SECRET}",
        f"run x --api-key {SECRET}",
        f"run x --password '{PLAIN}'",
        f"Authorization: Token {SECRET}",
        f"curl -u admin:{PLAIN} https://example.org",
        f"postgres://u:ab/{CANARY}@example.org/db",
        f"postgres://u:ab@{CANARY}@example.org/db",
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET * 4}==;",
        f"Server=x;Uid=a;Pwd={CANARY};",
        f"https://mcp.zapier.com/api/mcp/s/{SECRET * 3}/mcp",
        f"https://hooks.slack.com/services/T0000/B0000/{SECRET}",
        f"https://example.org/?pat={SECRET}",
        f"https://example.org/api?code={SECRET}",
        f"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/{SECRET}",
        f'"key": "{SECRET}"',
        f'"refresh": "{SECRET * 2}"',
        f"pass = {CANARY}",
        f"password {SECRET}",
        f"<password>{PLAIN}</password>",
        f'<add name="DbPassword" value="{PLAIN}"/>',
        f"password: |\n  {PLAIN}",
        f'"token" => "{SECRET}"',
        f"token=password=x;secret={CANARY}",
        f"password={'a1' * 200}{CANARY}",
    ],
)
def test_credential_is_replaced(text: str) -> None:
    kept = scrub_text(f"Before.\n{text}\nAfter.")
    assert kept.startswith("Before.\n")
    assert kept.endswith("After.")
    assert not [value for value in (CANARY, CANARY.upper(), SECRET, PLAIN) if value in kept]


@pytest.mark.parametrize("text", ["Authorization: Basic dXNlcjpwYXNz", "use Bearer abc123def"])
def test_short_value_after_a_scheme_is_replaced(text: str) -> None:
    assert scrub_text(text) == text.rpartition(" ")[0] + " [removed]"


@pytest.mark.parametrize(
    "text",
    r"""
# Rules: run `make test`; see https://example.org/a?b=c
token: see the vault
- token: ask the owner
the password is asked at start
Use `--token` to pass a token. The --token argument is required, --password too.
The secret of good code: small functions. Session: two hours. Enter password: (hidden)
def f(token: str, password: str = "") -> None:
    token = os.environ["TOKEN"]
    password = getpass.getpass("Password: ")
    api_key = config.api_key2
    for key, value in sorted(d.items(), key=lambda item: item[1]):
    cache_key = f"user:{user_id}"
    return {"key": "value", "name": "x", "code": 404}
const token = getToken(user, 12345678);
if (password === other.password) { throw new Error("password mismatch"); }
token: CancellationToken
"password": {"type": "string", "minLength": 12}
<input type="password" name="password">
password = forms.CharField(widget=forms.PasswordInput)
primary_key=True, foreign_key="users.id", max_tokens=4096, maxTokens: 8192
commit 8f3e2a1b9c0d4e5f6a7b8c9d0e1f2a3b4c5d6e7f fixes it
https://github.com/o/r/commit/8f3e2a1b9c0d4e5f6a7b8c9d0e1f2a3b4c5d6e7f
id 123e4567-e89b-12d3-a456-426614174000
tests/integration/test_the_whole_thing_with_2_servers_and_a_proxy.py
docs/2025-11-19-Quarterly-Report-Final-Version-3.md
TestThatTheServerStartsWithTwoWorkersAndOneProxy
https://medium.com/@user/some-article-1234567890ab
http://localhost:8080/users/@me and ssh://git@github.com/o/r
docker run -u 1000:1000 -e TOKEN -p 8080:80 x; mkdir -p a/b; git push -u origin main
export TOKEN=$(pass show x); curl -H "Authorization: Bearer $TOKEN" -H 'Accept: text/html'
export API_KEY=<your key>; API_KEY=your-key-here; password=${DB_PASSWORD}
return vault(has_passphrase=secrets.has_passphrase) or {"passphrase": has_passphrase}
COOKIE = 0xFFFF_FFFF; names = "hosts: files dns\npasswd: files\ngroup: files"
TOKEN_FILE=/run/secrets/token1 and secretKeyRef: db2-password
basic authentication, Bearer tokens, Basic Understanding
tokenizer = "cl100k_base"; exit code: 137; auth: OAuth2
claude-sonnet-4-5-20250929, us.anthropic.claude-sonnet-4-5-20250929-v1:0
sk-learn-contrib-something, npm_config_registry_of_the_company
""".strip().split("\n"),
)
def test_ordinary_text_stays(text: str) -> None:
    assert scrub_text(f"{text}\nNext.") == f"{text}\nNext."


def test_key_without_an_end_loses_its_lines_only() -> None:
    text = f"-----BEGIN PRIVATE KEY-----\n{CANARY * 3}\nAA==\n\nNext paragraph.\n"
    assert scrub_text(text) == "[removed]\nNext paragraph.\n"
    text = "Files with -----BEGIN PRIVATE KEY----- are keys.\n"
    assert scrub_text(text) == "Files with [removed] are keys.\n"


def _patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for name, value in vars(text_scrubbing).items():
        if isinstance(value, re.Pattern):
            yield name, value


def _unbounded(tree: Any, *, is_last: bool = True) -> Iterator[str]:
    """The repetitions without a bound that something follows, which could make a match begin
    again at every offset.
    """
    parser = importlib.import_module("re._constants")
    items = list(tree)
    for at, (kind, value) in enumerate(items):
        ends_here = is_last and at == len(items) - 1
        if kind in {parser.MAX_REPEAT, parser.MIN_REPEAT, parser.POSSESSIVE_REPEAT}:
            most, inner = value[1], value[2]
            if most is parser.MAXREPEAT and not (ends_here and len(inner) == 1):
                yield str(value)
            yield from _unbounded(inner, is_last=ends_here and most is not parser.MAXREPEAT)
        elif kind is parser.BRANCH:
            for one in value[1]:
                yield from _unbounded(one, is_last=ends_here)
        elif kind is parser.SUBPATTERN:
            yield from _unbounded(value[3], is_last=ends_here)
        elif kind in {parser.ASSERT, parser.ASSERT_NOT}:
            yield from _unbounded(value[1], is_last=False)
        elif kind is parser.GROUPREF_EXISTS:
            for one in filter(None, value[1:]):
                yield from _unbounded(one, is_last=ends_here)


@pytest.mark.parametrize(
    ("name", "pattern"), [pytest.param(*one, id=one[0]) for one in _patterns()]
)
def test_every_pattern_is_bounded(name: str, pattern: re.Pattern[str]) -> None:
    tree = importlib.import_module("re._parser").parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    assert list(_unbounded(tree)) == [], name


def test_check_of_patterns_finds_what_is_quadratic() -> None:
    parse = importlib.import_module("re._parser").parse
    assert list(_unbounded(parse(r"(token\w{0,40}=)(?=\S*\d)\S{8,}")))
    assert list(_unbounded(parse(r"eyJ\w{10,}\.x")))
    assert list(_unbounded(parse(r"(?:ab*)*")))
    assert not list(_unbounded(parse(r"sk-\w{16,}|ab[^\n]*")))
