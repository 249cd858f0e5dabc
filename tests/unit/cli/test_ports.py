"""What `ports` and `checkout` ask of the daemon, and how they show its answer."""

from __future__ import annotations

import json
import os
import re
import socket
from typing import Any

import pytest

from atoll.cli.app import run
from atoll.engine.network import daemon_client
from atoll.model.daemon_messages import CheckoutRequest, PortsRequest, RouterReply
from atoll.model.errors import StateError

ANSWER: dict[str, Any] = {
    "router": {"port": 7080, "trouble": None},
    "label": "shop",
    "note": None,
    "checked_out": "fix",
    "missing": [],
    "not_canonical": None,
    "more": 0,
    "shared": False,
    "ports": [
        {
            "capsule": "fix", "name": "web", "inside": 3000, "dynamic": 20_001, "canonical": 3000,
            "url": "http://web.fix--shop.localhost:7080", "state": "listening",
        },
        {
            "capsule": "fix", "name": "9", "inside": 9, "dynamic": None, "canonical": None,
            "url": None, "state": "too many ports: not published",
        },
    ],
}  # fmt: skip


@pytest.fixture
def daemon(monkeypatch, repo, atoll):
    """What it was asked; `answer` is what it says."""
    asked = []
    atoll("new", "fix", cwd=repo)
    monkeypatch.chdir(repo)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    monkeypatch.setenv("ATOLL_ROUTER_PORT", str(port))

    def ask(session, request, kind, *, start=True):
        if kind is RouterReply:
            inode = os.fstat(listener.fileno()).st_ino
            trouble = None if isinstance(ask.answer, Exception) else ask.answer["router"]["trouble"]  # type: ignore[attr-defined]
            return RouterReply(port, (inode,), trouble, None)
        asked.append(request)
        session.store.close()
        if isinstance(ask.answer, Exception):  # type: ignore[attr-defined]
            raise ask.answer  # type: ignore[attr-defined]
        return kind(ask.answer)  # type: ignore[attr-defined]

    ask.answer, ask.asked = ANSWER, asked  # type: ignore[attr-defined]
    monkeypatch.setattr(daemon_client, "ask", ask)
    with listener:
        yield ask


def test_ports_of_all_and_of_one(daemon, capsys):
    assert run(["ports"]) == 0
    assert run(["ports", "fix"]) == 0
    requests = daemon.asked
    assert [type(request) for request in requests] == [PortsRequest] * 2
    assert [request.capsule for request in requests] == [None, 1]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CAPSULE", "NAME", "INSIDE", "DYNAMIC", "CANONICAL", "URL", "STATE"]
    assert lines[1].split() == [
        "fix", "web", "3000", "20001", "3000", "http://web.fix--shop.localhost:7080", "listening",
    ]  # fmt: skip
    assert lines[2].split()[:6] == ["fix", "9", "9", "-", "-", "-"]


def test_json_is_the_daemons_answer(daemon, capsys):
    assert run(["ports", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "kind": "ports", "data": ANSWER}


def test_what_is_unusual_is_reported(daemon, capsys):
    daemon.answer = {
        **ANSWER,
        "router": {"port": 7080, "trouble": "port 7080 is in use by `x`"},
        "note": "another project is called `shop`",
        "missing": ["port 3000 is in use by `y`"],
        "more": 7,
        "ports": [],
    }
    assert run(["ports"]) == 0
    said = capsys.readouterr().err
    for text in (
        "7 more",
        "another project",
        "URLs do not work: port 7080",
        "port 3000 is in use",
        "no port is",
    ):
        assert text in said


def test_checkout_and_back(daemon, capsys):
    assert run(["checkout", "fix"]) == 0
    assert run(["checkout", "--none"]) == 0
    assert [type(request) for request in daemon.asked] == [CheckoutRequest] * 2
    assert [request.capsule for request in daemon.asked] == [1, None]
    assert "no capsule is checked out" in capsys.readouterr().err


def test_named_ports_are_asked_for(daemon):
    assert run(["checkout", "fix", "--port", "5432", "-p", "22", "-p", "22"]) == 0
    assert run(["checkout", "fix"]) == 0
    assert [request.ports for request in daemon.asked] == [(22, 5432), ()]


def test_ports_that_were_not_taken_are_reported_with_the_command(daemon, capsys):
    daemon.answer = {
        **ANSWER,
        "not_canonical": {
            "ports": [{"port": 5432, "reason": "it is the port of PostgreSQL"}],
            "more": 2000,
            "command": "atoll checkout fix --port 5432",
        },
    }
    assert run(["checkout", "fix"]) == 0
    said = capsys.readouterr().err
    assert "port 5432 is not published on 127.0.0.1: it is the port of PostgreSQL" in said
    assert "2000 more" in said
    assert "hint: atoll checkout fix --port 5432" in said


def test_refusal_is_reported(daemon, capsys):
    daemon.answer = StateError(
        "port 3000 is in use by `x`", hint="kill 1, then: atoll checkout fix"
    )
    assert run(["checkout", "fix"]) == 4
    assert "hint: kill 1, then: atoll checkout fix" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fix", "--none"],
        ["--none", "--port", "1"],
        ["fix", "--port", "0"],
        ["fix", "--port", "65536"],
        ["fix", "--port", "web"],
    ],
)
def test_usage_is_checked_before_anything_is_asked(daemon, words):
    assert run(["checkout", *words]) == 2
    assert daemon.asked == []


def test_rows_left_out_of_one_capsule_have_no_hint_to_ask_for_one(daemon, capsys):
    daemon.answer = {**ANSWER, "more": 7}
    assert run(["ports"]) == 0
    assert "hint: atoll ports NAME" in capsys.readouterr().err
    assert run(["ports", "fix"]) == 0
    said = capsys.readouterr().err
    assert "7 more ports are not shown" in said
    assert "hint" not in said


def test_ports_that_are_shared_are_mentioned(daemon, capsys, monkeypatch):
    monkeypatch.setenv("ATOLL_SHARE_PORTS", "on")
    assert run(["ports"]) == 0
    assert "other users of this machine can connect" in capsys.readouterr().err
    # It is kept for the home.
    monkeypatch.delenv("ATOLL_SHARE_PORTS")
    assert run(["ports", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["shared"] is True
    monkeypatch.setenv("ATOLL_SHARE_PORTS", "off")
    assert run(["ports"]) == 0
    assert "other users" not in capsys.readouterr().err


def test_checkout_that_takes_nothing_says_so(daemon, capsys):
    assert run(["checkout", "fix"]) == 0
    assert "no port was published" not in capsys.readouterr().err
    daemon.answer = {**ANSWER, "ports": ANSWER["ports"][1:]}
    assert run(["checkout", "fix"]) == 0
    assert "no port was published" in capsys.readouterr().err


def test_url_of_a_port_that_is_not_published_is_refused(daemon, capsys, monkeypatch):
    monkeypatch.delenv("ATOLL_DAEMON", raising=False)
    assert run(["open", "fix", "5000", "--print"]) == 4
    said = capsys.readouterr().err
    assert "port 5000 of `fix` is not published: nothing listens on it" in said
    assert "listening: web" in said
    assert run(["open", "fix", "9", "--print"]) == 4
    said = capsys.readouterr().err
    assert "port 9 of `fix` is not published: too many ports: not published" in said


def test_name_and_none_exclude_each_other(daemon, capsys):
    assert run(["checkout", "fix", "--none"]) == 2
    assert "`--none` and NAME are mutually exclusive" in capsys.readouterr().err


def test_the_daemons_version_is_no_part_of_an_answer(daemon, capsys):
    daemon.answer = {**ANSWER, "version": "0.1"}
    assert run(["ports", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == ANSWER


def test_hint_names_a_free_port_for_the_router(daemon, capsys):
    daemon.answer = {**ANSWER, "router": {"port": 7080, "trouble": "port 7080 is in use by `x`"}}
    assert run(["ports"]) == 0
    assert re.search(r"hint: export ATOLL_ROUTER_PORT=(7[0-9]{3}|PORT)$", capsys.readouterr().err,
                     re.MULTILINE)  # fmt: skip


def test_unknown_capsule(daemon):
    assert run(["ports", "nope"]) == 4
    assert daemon.asked == []
