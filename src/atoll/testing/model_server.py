"""A model on loopback that follows a script, in the formats of Anthropic, OpenAI and Gemini.

Agents' own programs run against it, so that tests and demos need no network and no account. It
demands a key: a request with a wrong, missing or placeholder key is refused and remembered as a
violation. It records what it was asked, never the values of headers.

As a program: `python -m atoll.testing.model_server --script FILE` prints its URL and serves until
it is terminated.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import re
import signal
import socket
import ssl
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from atoll.drivers.network import websocket
from atoll.model.errors import SpecError
from atoll.testing.model_dialects import (
    Dialect,
    Object,
    Reply,
    Responses,
)
from atoll.testing.model_routes import (
    DIALECTS,
    act,
    find_route,
    look_up,
    render_accounts,
    render_events,
    render_fault,
    render_list,
)
from atoll.testing.model_script import (
    Fault,
    ModelRequest,
    Script,
    Usage,
    parse_script,
    resolve,
    side_reply,
)

PLACEHOLDER = "atollph"
"""What every placeholder of Atoll contains."""
_HOST = "127.0.0.1"
_MAX_BODY_BYTES = 64 << 20
_FOREVER_S = 3600.0
_KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")


class Recorded(NamedTuple):
    """One request to the server."""

    method: str
    path: str
    """Without the query."""
    headers: tuple[str, ...]
    """Lower-case names; no values."""
    status: int
    dialect: str = ""
    """Empty for anything but a request to a model."""
    model: str = ""
    is_stream: bool = False
    usage: Usage | None = None
    """What was reported to the client."""
    conversation: ModelRequest = ModelRequest()


class ModelServer:
    """Serves from `start` to `close`; also a context manager."""

    def __init__(
        self,
        script: Script,
        *,
        keys: Collection[str] = (),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Without `keys` every key is accepted that is no placeholder."""
        self._script, self._keys = script, frozenset(keys)
        self._changed = threading.Condition()
        self._requests: list[Recorded] = []
        self._violations: list[str] = []
        self._served: Counter[tuple[str, int]] = Counter()
        self._numbers = itertools.count(1)
        self._gate = threading.Event()
        self._gate.set()
        self.on_record: Callable[[Recorded], None] | None = None
        self._scheme = "http" if tls is None else "https"
        self._http = _Server((_HOST, port), self, tls)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://{_HOST}:{self.port}"

    @property
    def requests(self) -> list[Recorded]:
        """All that were answered, in this order."""
        with self._changed:
            return list(self._requests)

    @property
    def model_requests(self) -> list[Recorded]:
        return [r for r in self.requests if r.dialect]

    @property
    def violations(self) -> list[str]:
        """Requests without the right key; never contains one."""
        with self._changed:
            return list(self._violations)

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends all connections and threads."""
        self._gate.set()
        self._http.shutdown()
        self._thread.join()
        self._http.hang_up()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def pause(self) -> None:
        """Requests to the model wait until `resume`."""
        self._gate.clear()

    def resume(self) -> None:
        self._gate.set()

    def wait_for(self, count: int, *, timeout_s: float = 60) -> list[Recorded]:
        """Waits until the model was asked so often; AssertionError after `timeout_s`."""
        with self._changed:
            enough = self._changed.wait_for(
                lambda: sum(1 for r in self._requests if r.dialect) >= count, timeout_s
            )
            found = [r for r in self._requests if r.dialect]
        if not enough:
            raise AssertionError(f"the model was asked {len(found)} times and not {count}")
        return found

    def record(self, request: Recorded) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        if self.on_record is not None:
            self.on_record(request)

    def find_violation(self, where: str, keys: Sequence[str]) -> str | None:
        """Remembers and returns what is wrong with the keys of a request."""
        if any(PLACEHOLDER in key for key in keys):
            problem = f"{where}: a placeholder instead of the key"
        elif not keys:
            problem = f"{where}: no key"
        elif self._keys and not self._keys.intersection(keys):
            problem = f"{where}: a wrong key"
        else:
            return None
        self.add_violation(problem)
        return problem

    def add_violation(self, problem: str) -> None:
        with self._changed:
            self._violations.append(problem)

    def reply(self, conversation: ModelRequest) -> tuple[Reply, Fault | None]:
        """What the script answers, and the fault that comes instead."""
        self._gate.wait()
        turn = self._script(conversation) if conversation.tools else side_reply(conversation)
        place = (next(iter(conversation.prompts), ""), conversation.replies)
        with self._changed:
            faults = [fault for fault in turn.faults for _ in range(fault.times)]
            at = self._served[place]
            fault = faults[at] if at < len(faults) else None
            if faults and conversation.tools:
                self._served[place] += 1
            number = next(self._numbers)
        calls = resolve(turn, conversation)
        return Reply(str(number), conversation.model, turn.say, calls, turn.usage), fault


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(
        self, address: tuple[str, int], model: ModelServer, tls: ssl.SSLContext | None
    ) -> None:
        self.model, self._tls = model, tls
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._tls is not None:
            # The handshake happens in the thread of the connection, with the first read.
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in tuple(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away is no error; anything else ends up in the violations."""
        error = sys.exception()
        if not isinstance(error, OSError):
            self.model.add_violation(f"error in the server: {error!r}")


class _Asked(NamedTuple):
    """A request to a model."""

    dialect: Dialect
    conversation: ModelRequest
    is_stream: bool


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._send_head(HTTPStatus.OK, {"Content-Length": "0"})

    def do_GET(self) -> None:
        if self.headers.get("Upgrade", "").lower() == "websocket" and self._route == "responses":
            if not self._refuses():
                _Conversing(self).run()
            return
        if self._route == "accounts":
            account = self.headers.get("ChatGPT-Account-Id", "scripted")
            self._answer(HTTPStatus.OK, render_accounts(account))
            return
        self._answer(*look_up(self._route, self.path))

    def do_POST(self) -> None:
        try:
            body = self._body()
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": {"message": str(error)}})
            return
        if self._route in DIALECTS:
            if not self._refuses():
                self._ask(body)
            return
        self._answer(*act(self._route, body))

    @property
    def path_only(self) -> str:
        return urlsplit(self.path).path

    @property
    def _route(self) -> str:
        return find_route(self.path_only)

    def _refuses(self) -> bool:
        problem = self.model.find_violation(f"{self.command} {self.path_only}", self._given_keys())
        if problem:
            dialect = DIALECTS[self._route]
            self._answer(HTTPStatus.UNAUTHORIZED, dialect.error(401, "invalid credentials"))
        return problem is not None

    @property
    def model(self) -> ModelServer:
        return self.server.model

    def _given_keys(self) -> list[str]:
        found = [value for name in _KEY_HEADERS if (value := self.headers.get(name))]
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and token:
            found.append(token)
        return [*found, *parse_qs(urlsplit(self.path).query).get("key", ())]

    def _body(self) -> Object:
        """ValueError when it is too long or no JSON object."""
        data = self._raw_body()
        coding = self.headers.get("Content-Encoding", "identity")
        if coding == "gzip":
            data = gzip.decompress(data)
        elif coding == "deflate":
            data = zlib.decompress(data)
        elif coding != "identity":
            raise ValueError(f"the content coding `{coding}` is not supported")
        body = json.loads(data or b"{}")
        if not isinstance(body, dict):
            raise ValueError("the body is no object")  # noqa: TRY004 - the answer is 400
        return body

    def _raw_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length", "0"))
            if size > _MAX_BODY_BYTES:
                raise ValueError("the body is too long")
            return self.rfile.read(size)
        data = bytearray()
        while size := int(self.rfile.readline(64).split(b";")[0], 16):
            if len(data) + size > _MAX_BODY_BYTES:
                raise ValueError("the body is too long")
            data += self.rfile.read(size)
            self.rfile.readline(64)
        while self.rfile.readline(4096).strip():
            pass
        return bytes(data)

    def _ask(self, body: Object) -> None:
        dialect = DIALECTS[self._route]
        conversation = dialect.parse(body)
        if named := re.search(r"/models/([^/:]+):", self.path_only):
            conversation = ModelRequest(**{**vars(conversation), "model": named[1]})
        in_path = "streamGenerateContent" in self.path
        self._respond(_Asked(dialect, conversation, in_path or body.get("stream") is True))

    def _respond(self, asked: _Asked) -> None:
        reply, fault = self.model.reply(asked.conversation)
        if fault is not None and fault.kind == "status":
            status, headers, answer = render_fault(asked.dialect, fault)
            self._answer(status, answer, headers, asked=asked)
        elif fault is not None and fault.kind == "silent":
            self.note(HTTPStatus.OK, asked)
            self.wait_for_end()
        elif asked.is_stream:
            self._stream(asked, reply, is_cut=fault is not None)
        elif fault is not None:
            self.note(HTTPStatus.OK, asked)
            self._send_head(HTTPStatus.OK, {"Content-Length": "1000"})
            self.wfile.write(b"{")
            self.close_connection = True
        else:
            whole = asked.dialect.whole(reply)
            self._answer(HTTPStatus.OK, whole, asked=asked, usage=reply.usage)

    def _stream(self, asked: _Asked, reply: Reply, *, is_cut: bool) -> None:
        self.note(HTTPStatus.OK, asked, None if is_cut else reply.usage)
        as_events = asked.dialect.name != "gemini" or "alt=sse" in self.path
        kind = "text/event-stream" if as_events else "application/json"
        headers = {"Content-Type": kind, "Cache-Control": "no-cache"}
        self._send_head(HTTPStatus.OK, {**headers, "Transfer-Encoding": "chunked"})
        events = list(asked.dialect.stream(reply))
        if is_cut:
            events = events[: -(-len(events) // 2)]
        for text in render_events(events) if as_events else render_list(events):
            self._write_chunk(text.encode())
        if is_cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _write_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(
        self,
        status: int,
        body: Object,
        headers: Mapping[str, str] | None = None,
        *,
        asked: _Asked | None = None,
        usage: Usage | None = None,
    ) -> None:
        data = json.dumps(body).encode()
        self.note(status, asked, usage)
        kind = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        self._send_head(status, {**kind, **(headers or {})})
        self.wfile.write(data)

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def note(self, status: int, asked: _Asked | None, usage: Usage | None = None) -> None:
        names = tuple(sorted(name.lower() for name in self.headers))
        request = Recorded(self.command, self.path_only, names, int(status))
        if asked is not None:
            request = request._replace(
                dialect=asked.dialect.name,
                model=asked.conversation.model,
                is_stream=asked.is_stream,
                usage=usage,
                conversation=asked.conversation,
            )
        self.model.record(request)

    def wait_for_end(self) -> None:
        """Until the client hangs up, or the server is closed."""
        self.connection.settimeout(_FOREVER_S)
        with suppress(OSError):
            while self.connection.recv(4096):
                pass
        self.close_connection = True

    def switch_protocols(self) -> None:
        key = self.headers.get("Sec-WebSocket-Key", "").encode()
        accept = websocket.accept_key(key).decode()
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}
        self._send_head(HTTPStatus.SWITCHING_PROTOCOLS, upgrade)
        self.close_connection = True


class _Conversing:
    """One WebSocket on which a client asks with `response.create` and gets events."""

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler
        self._dialect = Responses()
        self._known: dict[str, list[Object]] = {}
        """By id of a response: all items up to it, which a client need not send again."""

    def run(self) -> None:
        self._handler.switch_protocols()
        with suppress(OSError):
            for message in self._messages():
                if message.opcode == websocket.PING:
                    self._send(websocket.PONG, message.data)
                elif message.opcode == websocket.CLOSE or not self._respond(message.data):
                    self._send(websocket.CLOSE, b"\x03\xe8")
                    return

    def _messages(self) -> Iterator[websocket.Message]:
        reader = websocket.MessageReader(_MAX_BODY_BYTES)
        connection = self._handler.rfile
        while data := connection.read1(1 << 16):
            yield from reader.feed(data)

    def _respond(self, data: bytes) -> bool:
        """Returns whether the connection goes on."""
        body = json.loads(data)
        if body.get("type") != "response.create":
            return True
        before = self._known.get(str(body.get("previous_response_id")), [])
        given = [*before, *body.get("input", ())]
        conversation = self._dialect.parse({**body, "input": given})
        asked = _Asked(self._dialect, conversation, is_stream=True)
        if body.get("generate") is False:
            return self._warm_up(asked, given)
        reply, fault = self._handler.model.reply(conversation)
        if fault is not None and fault.kind == "silent":
            self._handler.note(HTTPStatus.OK, asked)
            self._handler.wait_for_end()
            return False
        if fault is not None and fault.kind == "status":
            status, headers, answer = render_fault(self._dialect, fault)
            self._handler.note(status, asked)
            self._send_event({"type": "error", "status": status, "headers": headers, **answer})
            return True
        self._handler.note(HTTPStatus.OK, asked, None if fault else reply.usage)
        events = list(self._dialect.stream(reply))
        if fault is not None:
            events = events[: -(-len(events) // 2)]
        for event in events:
            self._send_event(event.data)
        whole = self._dialect.whole(reply)
        self._known[whole["id"]] = [*given, *whole["output"]]
        return fault is None

    def _warm_up(self, asked: _Asked, given: list[Object]) -> bool:
        """A client sends the beginning of a conversation ahead: nothing is generated."""
        model = asked.conversation.model
        reply = Reply(f"warm{len(self._known)}", model, "", (), Usage(0, 0, 0))
        for event in self._dialect.stream(reply):
            self._send_event(event.data)
        self._known[f"resp_{reply.id}"] = given
        return True

    def _send_event(self, data: Object | str) -> None:
        self._send(websocket.TEXT, json.dumps(data).encode())

    def _send(self, opcode: int, payload: bytes) -> None:
        self._handler.wfile.write(websocket.frame(opcode, payload))
        self._handler.wfile.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM or SIGINT; the first line of the output is `{"url": …}`."""
    parser = argparse.ArgumentParser(description="a scripted model on loopback")
    parser.add_argument("--script", required=True, type=Path, help="a JSON file: a list of turns")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--key-variable", action="append", default=[], help="a variable with an accepted key"
    )
    parser.add_argument("--record", type=Path, help="a file to which requests are added as lines")
    chosen = parser.parse_args(arguments)
    try:
        script = parse_script(json.loads(chosen.script.read_text()))
    except (OSError, ValueError, SpecError) as error:
        parser.error(f"cannot use `{chosen.script}`: {error}")
    keys = [os.environ[name] for name in chosen.key_variable]
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with ModelServer(script, keys=keys, port=chosen.port) as server:
        if chosen.record is not None:
            server.on_record = _Recorder(chosen.record, server)
        os.write(1, json.dumps({"url": server.url}).encode() + b"\n")
        signal.sigwait(ends)


class _Recorder:
    """Writes one JSON line for each request."""

    def __init__(self, path: Path, server: ModelServer) -> None:
        self._path, self._server = path, server
        self._turn = threading.Lock()

    def __call__(self, request: Recorded) -> None:
        conversation = request.conversation
        entry = {
            **request._asdict(),
            "usage": request.usage and request.usage._asdict(),
            "conversation": {
                "prompts": conversation.prompts,
                "results": conversation.results,
                "replies": conversation.replies,
                "tools": [tool.name for tool in conversation.tools],
            },
            "violations": self._server.violations,
        }
        with self._turn, self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
