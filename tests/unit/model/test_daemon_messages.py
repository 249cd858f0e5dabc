from __future__ import annotations

import pytest

from atoll.model import daemon_messages as messages
from atoll.model.enclosure import EnclosureError
from atoll.model.errors import SpecError

REQUESTS = [
    (messages.StatusRequest(), {"do": "status"}),
    (messages.StopRequest(), {"do": "stop"}),
    (messages.AttachRequest(3), {"do": "attach", "capsule": 3}),
    (messages.JournalRequest(3), {"do": "journal", "capsule": 3}),
    (messages.RouterRequest(), {"do": "router"}),
    (messages.PortsRequest("p", None), {"do": "ports", "project": "p", "capsule": None}),
    (
        messages.CheckoutRequest("p", 3, (80,)),
        {"do": "checkout", "project": "p", "capsule": 3, "ports": [80]},
    ),
    (
        messages.ChangesRequest("p", "/r", "w", 7),
        {"do": "changes", "project": "p", "root": "/r", "watch": "w", "position": 7},
    ),
    (messages.UnlockRequest("id", "00ff"), {"do": "unlock", "id": "id", "key": "00ff"}),
    (messages.LockRequest(), {"do": "lock"}),
]


@pytest.mark.parametrize(("request_", "value"), REQUESTS)
def test_requests_travel_as_they_always_did(request_, value):
    encoded = messages.encode_request(request_)
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in encoded.items()} == value
    assert messages.parse_request(value) == request_


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"do": "policy", "capsule": 1},
        {"do": ["status"]},
        {"do": "attach"},
        {"do": "attach", "capsule": None},
        {"do": "attach", "capsule": True},
        {"do": "ports", "project": 1, "capsule": None},
    ],
)
def test_bad_requests(value):
    with pytest.raises(SpecError):
        messages.parse_request(value)


@pytest.mark.parametrize(
    "reply",
    [
        messages.DoneReply(),
        messages.AttachReply(held=True, problems={"egress": "in use"}),
        messages.RouterReply(7080, (1, 2), None, None),
        messages.ChangesReply("w", 7, ("a",)),
        messages.ChangesReply(),
        messages.StatusReply(
            {"pid": 1, "since": 2.0, "capsules": [], "watched": {}, "freezing": False}
        ),
    ],
)
def test_replies(reply):
    sent = {**messages.encode_reply(reply), "revision": 9}
    sent = {k: list(v) if isinstance(v, tuple) else v for k, v in sent.items()}
    assert messages.parse_reply(type(reply), sent) == reply


STATUS = {"pid": 1, "since": 2, "capsules": [], "watched": {"p": 3}, "freezing": False}
PORTS: dict[str, object] = {
    "router": {"port": 1, "trouble": None}, "label": "l", "note": None, "checked_out": None,
    "missing": [], "not_canonical": None, "ports": [], "more": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        {"do": "checkout", "project": "p", "capsule": 1, "ports": ["80"]},
        {"do": "checkout", "project": "p", "capsule": 1, "ports": [True]},
        {"do": "attach", "capsule": 1, "more": 2},
        {"do": "changes", "project": "p", "root": "/r", "watch": "w", "position": 1.5},
    ],
)
def test_items_and_unknown_keys_are_checked(value):
    with pytest.raises(SpecError):
        messages.parse_request(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (messages.AttachReply, {"held": True}),
        (messages.AttachReply, {"held": 1, "problems": {}}),
        (messages.AttachReply, {"held": True, "problems": {"egress": 1}}),
        (messages.RouterReply, {"port": 1, "inodes": ["2"], "trouble": None, "cure": None}),
        (messages.ChangesReply, {"watch": "w", "position": 1, "paths": "a"}),
        (messages.StatusReply, {}),
        (messages.StatusReply, {**STATUS, "pid": "1"}),
        (messages.StatusReply, {**STATUS, "watched": {"p": "3"}}),
        (messages.StatusReply, {**STATUS, "capsules": [{"name": "x"}]}),
        (messages.PortsReply, {**PORTS, "router": None}),
        (messages.PortsReply, {**PORTS, "not_canonical": {"ports": []}}),
        (messages.PortsReply, {**PORTS, "missing": [1]}),
    ],
)
def test_bad_replies(kind, value):
    with pytest.raises(EnclosureError):
        messages.parse_reply(kind, value)


def test_replies_of_another_version_may_hold_more():
    more = {"revision": 9, "new": 1}
    assert messages.parse_reply(messages.DoneReply, more) == messages.DoneReply()
    status = messages.parse_reply(messages.StatusReply, {**STATUS, **more}).status
    assert status["pid"] == 1
    assert messages.parse_reply(messages.PortsReply, {**PORTS, **more}).report["label"] == "l"


def test_key_is_not_shown():
    assert "00ff" not in repr(messages.UnlockRequest("id", "00ff"))
