"""The scripted model: real HTTP and WebSocket connections on loopback, as agents make them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from atoll.drivers.network.model_formats import ModelFormat, Tokens, UsageReader
from atoll.drivers.network.websocket import TEXT, MessageReader, frame
from atoll.model.errors import SpecError
from atoll.testing.model_script import (
    Call,
    Fault,
    ModelRequest,
    Shell,
    Tool,
    Turn,
    Usage,
    Write,
    parse_script,
    resolve,
    turns,
)
from atoll.testing.model_server import ModelServer

KEY = "sk-real-0123456789"
SCRIPT = turns(
    Turn("I look.", (Shell("ls"),), usage=Usage(120, 7, 20)),
    Turn("Done.", usage=Usage(200, 3)),
)
BASH = {"name": "Bash", "input_schema": {"properties": {"command": {"type": "string"}}}}
PATHS = {
    "anthropic": "/v1/messages?beta=true",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
}
FORMATS = {name: ModelFormat(name) for name in PATHS}


def function(name="shell"):
    return {"name": name, "parameters": {"properties": {"command": {"type": "string"}}}}


def body(name, *, with_result=False, stream=True):
    """A request in each format: the first one, or the one after the first tool call."""
    match name:
        case "anthropic":
            messages: list[Any] = [{"role": "user", "content": "do it"}]
            if with_result:
                used = {"type": "tool_use", "id": "a", "name": "Bash", "input": {}}
                result = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
                messages += [
                    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, used]},
                    {"role": "user", "content": [result]},
                ]  # fmt: skip
            return {"model": "m", "stream": stream, "tools": [BASH], "messages": messages}
        case "chat":
            messages = [{"role": "user", "content": [{"type": "text", "text": "do it"}]}]
            if with_result:
                messages += [
                    {"role": "assistant", "content": None, "tool_calls": []},
                    {"role": "tool", "content": "ok"},
                ]  # fmt: skip
            tools = [{"type": "function", "function": function("bash")}]
            return {"model": "m", "stream": stream, "tools": tools, "messages": messages}
        case "responses":
            items: list[Any] = [
                {"role": "user", "content": [{"type": "input_text", "text": "do it"}]}
            ]
            if with_result:
                items += [
                    {"type": "message", "role": "assistant", "content": "I look."},
                    {"type": "function_call", "name": "shell", "arguments": "{}"},
                    {"type": "function_call_output", "output": "ok"},
                ]  # fmt: skip
            tools = [{"type": "function", **function()}]
            return {"model": "m", "stream": stream, "tools": tools, "input": items}
    contents = [{"role": "user", "parts": [{"text": "do it"}]}]
    if with_result:
        done = {"functionResponse": {"name": "run_shell_command", "response": {"output": "ok"}}}
        contents += [
            {"role": "model", "parts": [{"functionCall": {"name": "run_shell_command"}}]},
            {"role": "user", "parts": [done]},
        ]
    tools = [{"functionDeclarations": [function("run_shell_command")]}]
    return {"contents": contents, "tools": tools}


def ask(server, path, content, *, key=KEY, header="Authorization"):
    value = f"Bearer {key}" if header == "Authorization" else key
    request = urllib.request.Request(
        server.url + path, json.dumps(content).encode(), {header: value}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


@pytest.fixture
def server():
    before = set(threading.enumerate())
    with ModelServer(SCRIPT, keys=[KEY]) as made:
        yield made
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("name", PATHS)
def test_every_format_follows_the_script(server, name):
    for with_result, tokens, said in (
        (False, Tokens(120, 7, 20), b"ls"),
        (True, Tokens(200, 3), b"Do"),
    ):
        status, headers, data = ask(server, PATHS[name], body(name, with_result=with_result))
        assert (status, headers["Content-Type"]) == (200, "text/event-stream")
        assert said in data
        reader = UsageReader(FORMATS[name])
        reader.begin("text/event-stream")
        reader.feed(data)
        [counted] = reader.end(is_cut=False)
        assert counted.tokens == tokens
        recorded = server.model_requests[-1]
        assert (recorded.dialect, recorded.is_stream) == (name, True)
        assert recorded.usage == Usage(tokens.input_tokens, tokens.output_tokens, tokens.cache_read)
        assert len(recorded.conversation.results) == int(with_result)
        assert "authorization" in recorded.headers
    assert server.violations == []


@pytest.mark.parametrize("name", ["anthropic", "chat", "responses"])
def test_whole_answers(server, name):
    status, _, data = ask(server, PATHS[name], body(name, stream=False))
    assert (status, json.loads(data)["model"]) == (200, "m")
    assert not server.model_requests[-1].is_stream


@pytest.mark.parametrize(
    ("key", "header", "why"),
    [
        ("sk-other", "x-api-key", "a wrong key"),
        ("atollph00112233445566778899xz", "Authorization", "a placeholder instead of the key"),
        ("", "Authorization", "no key"),
    ],
)
def test_other_keys_are_violations(server, key, header, why):
    status, _, data = ask(server, "/v1/messages", body("anthropic"), key=key, header=header)
    assert (status, json.loads(data)["error"]["type"]) == (401, "authentication_error")
    assert server.violations == [f"POST /v1/messages: {why}"]
    assert not server.model_requests


@pytest.mark.parametrize("place", ["x-api-key", "x-goog-api-key", "?key="])
def test_places_of_the_key(server, place):
    path = PATHS["gemini"]
    if place == "?key=":
        assert ask(server, f"{path}&key={KEY}", body("gemini"), key="")[0] == 200
    else:
        assert ask(server, path, body("gemini"), header=place)[0] == 200
    assert server.violations == []


def test_side_requests_call_no_tool(server):
    content = {"model": "m", "messages": [{"role": "user", "content": "a title, please"}]}
    assert b"Scripted reply." in ask(server, "/v1/messages", content)[2]


def test_what_clients_ask_besides(server):
    assert ask(server, "/v1/messages/count_tokens", body("anthropic"))[0] == 200
    assert b"cloudaicompanionProject" in ask(server, "/v1internal:loadCodeAssist", {})[2]
    assert ask(server, "/api/event_logging/batch", {})[0] == 404
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=30) as answer:
        assert json.load(answer)["data"]
    assert server.model_requests == []


def test_faults_are_served_before_the_reply():
    faults = (Fault(status=529), Fault(status=429, retry_after_s=7, times=2), Fault("cut"))
    with ModelServer(turns(Turn("Done.", faults=faults))) as server:
        answers = [ask(server, PATHS["anthropic"], body("anthropic"))[:2] for _ in range(3)]
        assert [status for status, _ in answers] == [529, 429, 429]
        assert answers[1][1]["retry-after"] == "7"
        with pytest.raises(http.client.IncompleteRead):
            ask(server, PATHS["anthropic"], body("anthropic"))
        assert b"message_stop" in ask(server, PATHS["anthropic"], body("anthropic"))[2]


def test_a_silent_model_ends_with_the_server():
    with ModelServer(turns(Turn(faults=(Fault("silent"),)))) as server:
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        data = json.dumps(body("chat")).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        sock.sendall(f"{head}Authorization: Bearer {KEY}\r\n\r\n".encode() + data)
        assert server.wait_for(1)[0].status == 200
    assert sock.recv(10) == b""
    sock.close()


def test_a_paused_model_waits(server):
    server.pause()
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(ask(server, PATHS["chat"], body("chat"))[0])
    )
    thread.start()
    assert server.model_requests == []
    server.resume()
    thread.join(30)
    assert answers == [200]


def test_websocket(server):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = (
        "GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    )
    sock.sendall(head.encode())
    with sock, sock.makefile("rb") as stream:
        assert b"101" in stream.readline()
        while stream.readline().strip():
            pass
        reader = MessageReader(1 << 20)

        def converse(**content):
            sock.sendall(
                frame(
                    TEXT, json.dumps({"type": "response.create", **content}).encode(), mask=b"abcd"
                )
            )
            events: list[Any] = []
            while not events or events[-1]["type"] != "response.completed":
                events += [json.loads(message.data) for message in reader.feed(stream.read1())]
            return events[-1]["response"]

        first = converse(**body("responses"))
        assert first["output"][-1]["type"] == "function_call"
        result = [{"type": "function_call_output", "output": "ok"}]
        tools = body("responses")["tools"]
        second = converse(model="m", tools=tools, input=result, previous_response_id=first["id"])
        assert second["output"][0]["content"][0]["text"] == "Done."
    assert [request.path for request in server.wait_for(2)] == ["/v1/responses"] * 2


def tool(name, *properties, required=(), **kinds):
    schemas = {p: {"type": "string"} for p in properties}
    return Tool(name, schemas | {k: {"type": v} for k, v in kinds.items()}, tuple(required))


@pytest.mark.parametrize(
    ("offered", "act", "call"),
    [
        (
            tool("Bash", "command", "description", required=["command", "description"]),
            Shell("ls"),
            ("Bash", {"command": "ls", "description": "scripted"}),
        ),
        (tool("exec_command", "cmd"), Shell("ls"), ("exec_command", {"cmd": "ls"})),
        (
            tool("shell", command="array"),
            Shell("ls"),
            ("shell", {"command": ["bash", "-lc", "ls"]}),
        ),
        (
            tool("Write", "file_path", "content"),
            Write("a.txt", "x"),
            ("Write", {"file_path": "/repo/a.txt", "content": "x"}),
        ),
        (
            tool("developer__text_editor", "command", "path", "file_text"),
            Write("/a", "x"),
            ("developer__text_editor", {"command": "write", "path": "/a", "file_text": "x"}),
        ),
        (
            tool("bash", "command"),
            Write("a b", "x"),
            ("bash", {"command": "mkdir -p $(dirname 'a b') && printf %s x > 'a b'"}),
        ),
        (
            Tool("apply_patch", is_free_form=True),
            Write("a.txt", "x\ny\n"),
            ("apply_patch", "*** Begin Patch\n*** Add File: a.txt\n+x\n+y\n*** End Patch\n"),
        ),
        (tool("anything"), Call("anything", {"a": 1}), ("anything", {"a": 1})),
    ],
)
def test_acts_become_calls_of_the_tools_that_are_offered(offered, act, call):
    conversation = ModelRequest(tools=(offered,), text="Working directory: /repo\n")
    assert resolve(Turn(acts=(act,)), conversation) == (call,)


def test_scripts_from_json():
    script = parse_script([
        {"say": "I write.", "write": "a", "content": "b", "usage": [1, 2, 0]},
        {"acts": [{"shell": "ls"}, {"call": "X", "arguments": {"y": 1}}]},
        {"say": "Done.", "usage": None, "faults": [{"status": 429, "retry_after_s": 2}]},
    ])  # fmt: skip
    assert script(ModelRequest()) == Turn("I write.", (Write("a", "b"),), Usage(1, 2, 0))
    assert script(ModelRequest(replies=1)).acts == (Shell("ls"), Call("X", {"y": 1}))
    last = Turn("Done.", usage=None, faults=(Fault(status=429, retry_after_s=2),))
    assert script(ModelRequest(replies=2)) == script(ModelRequest(replies=9)) == last


@pytest.mark.parametrize(
    "entries",
    [{}, [], ["say"], [{"shout": "x"}], [{"acts": [{}]}], [{"faults": [{"kind": "odd"}]}],
     [{"faults": [{"x": 1}]}]],
)  # fmt: skip
def test_bad_scripts(entries):
    with pytest.raises(SpecError):
        parse_script(entries)


def test_as_a_program(tmp_path):
    script, record = tmp_path / "script.json", tmp_path / "record.jsonl"
    script.write_text('[{"say": "Done."}]')
    argv = [
        sys.executable, "-m", "atoll.testing.model_server", "--script", str(script),
        "--record", str(record), "--key-variable", "MODEL_KEY",
    ]  # fmt: skip
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, env={**os.environ, "MODEL_KEY": KEY}
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        request = urllib.request.Request(
            f"{url}/v1/messages", json.dumps(body("anthropic")).encode(), {"x-api-key": KEY}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    [line] = record.read_text().splitlines()
    assert (json.loads(line)["dialect"], json.loads(line)["violations"]) == ("anthropic", [])
    assert KEY not in line
