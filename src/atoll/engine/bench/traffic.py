"""What is measured of carried connections, by processes that do nothing else.

Runs in a process of its own, as `atoll.engine.bench.network` starts it: a server, a carrier and a
client, each one process, as they are in real life.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

_BULK, _ECHO = b"b", b"e"
_PIECE = bytes(1 << 16)
"""What most programs hand over at once."""
_SERVERS = 4
_FLOODERS = 2
_CROWD = 64
_REQUEST = b"x" * 300
_LOOPBACK = "127.0.0.1"


def main() -> None:
    """Reads `{"count", "bytes", "requests", "carrier"}`, writes samples of both ways as JSON, and
    those of a request alone and beside floods.
    """
    order = json.load(sys.stdin)
    os.write(1, json.dumps({**_measure_ways(order), **_measure_beside(order)}).encode())


def _measure_ways(order: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Carried and direct."""
    server = socket.create_server((_LOOPBACK, 0), backlog=1024)
    direct = server.getsockname()[1]
    # Several, so that no client waits for one that is still closing a connection.
    children = [_fork(lambda: _serve(server)) for _ in range(_SERVERS)]
    try:
        (carried,), carrier = _start_carrier(order["carrier"], direct)
        children.append(carrier)
        found: dict[str, dict[str, list[float]]] = {}
        # In turns: the machine may get busier meanwhile.
        for _ in range(order["count"]):
            for way, port in (("direct", direct), ("carried", carried)):
                samples = found.setdefault(way, {"bulk": [], "request": [], "connection": []})
                samples["bulk"].append(_bulk(port, order["bytes"]))
                samples["request"] += _requests(port, order["requests"])
                samples["connection"] += [_connection(port) for _ in range(order["requests"] // 8)]
        return found
    finally:
        _end(children)


def _measure_beside(order: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Requests through one port, while another one of the same carrier is flooded with connections.

    The control is a flood of the same servers that does not go through the carrier: what that costs
    is the processors' share of it.
    """
    servers = [socket.create_server((_LOOPBACK, 0), backlog=1024) for _ in range(2)]
    children = [_fork(partial(_serve, server)) for server in servers for _ in range(_FLOODERS)]
    quiet, flooded = (server.getsockname()[1] for server in servers)
    try:
        (port, neighbour), carrier = _start_carrier(order["carrier"], quiet, flooded)
        children.append(carrier)
        floods = {"alone": 0, "beside": neighbour, "control": flooded}
        found: dict[str, list[float]] = {way: [] for way in floods}
        for _ in range(order["count"]):
            for way, target in floods.items():
                flooders = [_fork(partial(_flood, target)) for _ in range(_FLOODERS) if target]
                try:
                    found[way] += [_connection(port) for _ in range(order["requests"])]
                finally:
                    _end(flooders)
        return {"neighbour": found}
    finally:
        _end(children)


def _flood(port: int) -> NoReturn:
    """Many connections at once, again and again."""
    while True:
        with ExitStack() as opened:
            crowd = [opened.enter_context(_connect(port, _BULK)) for _ in range(_CROWD)]
            for client in crowd:
                client.sendall(_REQUEST)
                client.shutdown(socket.SHUT_WR)
            for client in crowd:
                client.recv(32)


def _end(children: list[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def _start_carrier(command: list[str], *targets: int) -> tuple[list[int], int]:
    """A port for each target, and the process."""
    reader, writer = os.pipe()

    def become() -> NoReturn:
        os.dup2(writer, 1)
        os.execv(command[0], [*command, *map(str, targets)])  # noqa: S606

    pid = _fork(become)
    os.close(writer)
    with os.fdopen(reader) as said:
        return [int(word) for word in said.readline().split()], pid


def _serve(server: socket.socket) -> NoReturn:
    while True:
        client, _ = server.accept()
        with client:
            _answer(client)


def _answer(client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    kind = client.recv(1)
    if kind == _ECHO:
        while data := client.recv(1 << 16):
            client.sendall(data)
        return
    count, buffer = 0, bytearray(len(_PIECE))
    while size := client.recv_into(buffer):
        count += size
    client.sendall(b"%d" % count)


def _connect(port: int, kind: bytes) -> socket.socket:
    client = socket.create_connection((_LOOPBACK, port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(kind)
    return client


def _bulk(port: int, size: int) -> float:
    """Seconds until so many bytes have arrived, counted by whom they were for."""
    with _connect(port, _BULK) as client:
        started = time.perf_counter()
        left, piece = size, memoryview(_PIECE)
        while left:
            left -= client.send(piece[:left])
        client.shutdown(socket.SHUT_WR)
        arrived = int(client.recv(32))
        took_s = time.perf_counter() - started
    if arrived != size:
        raise ConnectionError(f"{arrived} of {size} bytes have arrived")
    return took_s


def _requests(port: int, count: int) -> list[float]:
    """Seconds of each of so many requests over one connection."""
    found = []
    with _connect(port, _ECHO) as client:
        for _ in range(count):
            started = time.perf_counter()
            client.sendall(_REQUEST)
            client.recv(1 << 16)
            found.append(time.perf_counter() - started)
    return found


def _connection(port: int) -> float:
    """Seconds of a request with a connection of its own."""
    started = time.perf_counter()
    with _connect(port, _ECHO) as client:
        client.sendall(_REQUEST)
        client.recv(1 << 16)
        return time.perf_counter() - started
