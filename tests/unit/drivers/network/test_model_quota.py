"""When a quota is reset, as the vendors say it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.network.model_quota import LONGEST_S, find_wait_s
from atoll.testing.model_dialects import Anthropic, Chat, Dialect, Gemini, Responses

NOW = 1_800_000_000.0


def wait(headers: dict[str, str] | None = None, body: object = None, status: int = 429):
    fields = tuple((k.encode(), v.encode()) for k, v in (headers or {}).items())
    return find_wait_s(status, fields, json.dumps(body).encode(), now=NOW)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "17"}, 17),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Fri, 15 Jan 2027 08:01:00 GMT"}, 60),
        ({"anthropic-ratelimit-unified-reset": str(int(NOW) + 18_000)}, 18_000),
        ({"retry-after": "9", "anthropic-ratelimit-unified-reset": str(int(NOW) + 18_000)}, 9),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-reset-tokens": "20ms"}, 0.02),
        (
            {
                "x-ratelimit-remaining-requests": "10", "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30s",
            },
            90,
        ),
        ({"x-ratelimit-reset-requests": "3s", "x-ratelimit-reset-tokens": "8s"}, 3),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:30Z",
            },
            30,
        ),
        ({"x-ratelimit-reset": str(int(NOW) + 40)}, 40),
        ({"x-ratelimit-reset": "40"}, 40),
        ({"retry-after": "yesterday"}, None),
        ({"retry-after": "Mon, 01 Jan 2024 00:00:00 +999999999999999999999"}, None),
        ({"retry-after": "Mon, 01 Jan 99999999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": str(int(LONGEST_S) + 1)}, None),
        ({"retry-after": "Fri, 15 Jan 2027 07:59:00 GMT"}, 0),
        ({}, None),
    ],
)  # fmt: skip
def test_headers(headers, expected):
    assert wait(headers) == expected


def test_bodies():
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}
    gemini = {"error": {"code": 429, "details": [{"@type": "x"}, info]}}
    assert wait(body=gemini) == 37.5
    assert wait(body=[gemini]) == 37.5
    limit = {"type": "usage_limit_reached", "resets_in_seconds": 3600}
    assert wait(body={"error": limit}) == 3600
    assert wait(body={"error": {"type": "usage_limit_reached", "resets_at": NOW + 5}}) == 5
    assert wait(body={"error": {"resets_at": "soon", "details": "x"}}) is None


def test_money_does_not_come_back_by_waiting():
    body = {"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}
    assert wait({"retry-after": "5"}, body) is None


def test_only_for_a_used_up_quota():
    assert wait({"retry-after": "5"}, status=503) is None


@pytest.mark.parametrize("dialect", [Anthropic(), Chat(), Responses(), Gemini()])
def test_the_scripted_model_says_it_in_the_same_ways(dialect: Dialect):
    limit = dialect.limit(12, NOW + 12)
    assert wait(dict(limit.headers), limit.body) == 12


@given(
    st.dictionaries(
        st.sampled_from([
            "retry-after", "retry-after-ms", "x-ratelimit-reset-tokens", "x-ratelimit-reset",
            "anthropic-ratelimit-unified-reset", "anthropic-ratelimit-requests-reset",
        ]),
        st.text(st.characters(codec="latin-1"), max_size=30),
    ),
    st.binary(max_size=60),
)  # fmt: skip
def test_any_answer_is_read(headers, body):
    fields = tuple((k.encode(), v.encode("latin-1")) for k, v in headers.items())
    found = find_wait_s(429, fields, body, now=NOW)
    assert found is None or 0 <= found <= LONGEST_S
