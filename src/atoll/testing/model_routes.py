"""What a scripted model answers at which path, besides the replies of its script."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

from atoll.testing.model_dialects import (
    Anthropic,
    Chat,
    Dialect,
    Gemini,
    Object,
    Responses,
    StreamEvent,
)
from atoll.testing.model_script import Fault

_MODEL_NAMES = ("scripted", "gpt-5.5", "claude-sonnet-4-5", "gemini-2.5-pro")

DIALECTS: Mapping[str, Dialect] = {
    "messages": Anthropic(),
    "chat": Chat(),
    "responses": Responses(),
    "gemini": Gemini(),
    "assist": Gemini(wraps=True),
}
_ROUTES = [
    (name, re.compile(pattern))
    for name, pattern in {
        "count": r"/v1/messages/count_tokens$",
        "messages": r"/v1/messages$",
        "chat": r"/chat/completions$",
        "responses": r"/responses$",
        "assist": r"/v1internal:(?:streamGenerateContent|generateContent)$",
        "assist-count": r"/v1internal:countTokens$",
        "load": r"/v1internal:loadCodeAssist$",
        "onboard": r"/v1internal:onboardUser$",
        "assist-other": r"/v1internal:",
        "gemini": r":(?:streamGenerateContent|generateContent)$",
        "gemini-count": r":countTokens$",
        "accounts": r"/wham/accounts/check$",
        "person": r"/(?:tokeninfo|oauth2/v2/userinfo|wham/settings/user)$",
        "models": r"/models$",
        "root": r"^/?$",
    }.items()
]
_PERSON: Object = {"email": "person@example.org", "scope": "email", "expires_in": 3600}
"""What is said of the holder of a token."""


def find_route(path: str) -> str:
    """The name of what a path stands for; empty when it is unknown. `DIALECTS` has the models."""
    return next((name for name, known in _ROUTES if known.search(path)), "")


def look_up(route: str, path: str) -> tuple[int, Object]:
    """The answer to a GET."""
    if route == "models" and "client_version" not in path:
        models = [{"id": n, "object": "model", "type": "model"} for n in _MODEL_NAMES]
        named = [{"name": f"models/{n}"} for n in _MODEL_NAMES]
        return HTTPStatus.OK, {
            "object": "list", "data": models, "models": named, "has_more": False,
        }  # fmt: skip
    if route in ("root", "assist-other"):
        return HTTPStatus.OK, {}
    if route == "person":
        return HTTPStatus.OK, _PERSON
    return HTTPStatus.NOT_FOUND, {"error": {"message": "not found"}}


def render_accounts(account: str) -> Object:
    """What Codex asks before it uses a subscription: its account, without a host of its own."""
    free = dict.fromkeys(("workspace_backend_origin", "account_routing_override"), "NO_CONSTRAINT")
    return {
        "accounts": [{"id": account, **free}],
        "account_ordering": [account],
        "default_account_id": account,
    }


def act(route: str, body: Object) -> tuple[int, Object]:
    """The answer to a POST that asks no model."""
    project = "scripted-project"
    tier = {"id": "standard-tier", "name": "Scripted", "isDefault": True}
    tokens = max(1, len(json.dumps(body)) // 4)
    answers: dict[str, Object] = {
        "count": {"input_tokens": tokens},
        "gemini-count": {"totalTokens": tokens},
        "assist-count": {"totalTokens": tokens},
        "load": {
            "currentTier": tier, "allowedTiers": [tier], "cloudaicompanionProject": project,
        },
        "onboard": {"done": True, "response": {"cloudaicompanionProject": {"id": project}}},
        "assist-other": {},
        "person": _PERSON,
    }  # fmt: skip
    if route in answers:
        return HTTPStatus.OK, answers[route]
    return HTTPStatus.NOT_FOUND, {"error": {"message": "not found"}}


def render_fault(dialect: Dialect, fault: Fault) -> tuple[int, Mapping[str, str], Object]:
    if fault.status == HTTPStatus.TOO_MANY_REQUESTS and fault.retry_after_s is not None:
        limit = dialect.limit(fault.retry_after_s, time.time() + fault.retry_after_s)
        return fault.status, limit.headers, limit.body
    return fault.status, {}, dialect.error(fault.status, "a scripted fault")


def render_events(events: Sequence[StreamEvent]) -> Iterator[str]:
    for event in events:
        data = event.data if isinstance(event.data, str) else json.dumps(event.data)
        name = f"event: {event.name}\n" if event.name else ""
        yield f"{name}data: {data}\n\n"


def render_list(events: Sequence[StreamEvent]) -> Iterator[str]:
    """As one JSON list, how Gemini streams by default."""
    for at, event in enumerate(events):
        yield ("," if at else "[") + json.dumps(event.data)
    yield "]"
