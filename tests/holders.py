"""Real network namespaces for tests of what is published: a process in each plays the holder, and
another one the daemon.

    python holders.py hold DIRECTORY              listens in DIRECTORY, in a network of its own
    python holders.py publish HOME CAPSULE=DIRECTORY…
    python holders.py story NAME PLACE            tells one of the stories below, as whoever we are

A whole story is one program, so that it can be told by root and by an ordinary user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from atoll.daemon.ports.publisher import Publisher
from atoll.daemon.ports.router import Router
from atoll.daemon.ports.targets import connect
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.host.listening_sockets import family_of, find_listening
from atoll.keeper import calls, networks, requests, wire
from worlds import World, free_port

POLL_S = 0.1
PATIENCE_S = 30.0


# The holder.


def hold(directory):
    listener = wire.listen(directory, requests.SOCKET, socket.SOCK_SEQPACKET)
    listener.settimeout(None)
    root = os.geteuid() == 0
    calls.unshare(calls.CLONE_NEWNET | (0 if root else calls.CLONE_NEWUSER))
    networks.bring_up("none")
    os.write(1, b"up\n")
    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=[client], daemon=True).start()


def answer(client):
    with contextlib.suppress(EOFError):
        while True:
            request, _ = requests.receive(client)
            match request:
                case {"sockets": list(wanted)}:
                    made = networks.make_sockets(wanted)
                    requests.send(client, {}, tuple(sock.fileno() for sock in made))
                    for sock in made:
                        sock.close()
                case {"serve": [address, port, text]}:
                    serve(address, port, text)
                    requests.send(client, {"pid": os.getpid()})


def serve(address, port, text):
    """A server inside: says its text and echoes, one thread per connection."""
    server = socket.socket(family_of(address))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if server.family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind((address, port))
    server.listen(256)

    def talk(client):
        with client, contextlib.suppress(OSError):
            client.sendall(text.encode())
            while data := client.recv(1 << 16):
                client.sendall(data)

    def accept():
        while True:
            threading.Thread(target=talk, args=[server.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class Held:
    """An `Inside` that has its sockets made by a holder."""

    def __init__(self, capsule, directory):
        self.capsule = capsule
        self._wire = requests.connect(directory)

    async def dial(self, port, address="127.0.0.1"):
        wanted = [[int(family_of(address)), int(socket.SOCK_STREAM)]]
        _, (fd,) = requests.ask(self._wire, {"sockets": wanted})
        sock = socket.socket(fileno=fd)
        try:
            sock.settimeout(0)
            await connect(sock, address, port)
        except BaseException:
            sock.close()
            raise
        return sock

    def pid(self):
        packed = self._wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(packed[:4], sys.byteorder)


# The daemon.


async def publish(home, places):
    session = Session(home=home, store=Store(home), owner=os.environ)
    publisher = Publisher(session)
    background = [asyncio.create_task(work.serve()) for work in (publisher, Router(publisher))]
    capsules = {capsule.name: capsule for capsule in session.store.capsules()}
    held: dict[str, Held] = {}
    os.write(1, b"up\n")
    while not any(task.done() for task in background):
        for name, directory in places.items():
            try:
                inside = held.get(name) or held.setdefault(name, Held(capsules[name], directory))
            except OSError:
                continue
            found = find_listening(inside.pid())
            if found is None:
                await publisher.forget(held.pop(name).capsule.id)
            else:
                await publisher.update(inside, found.places, is_complete=found.is_complete)
        await asyncio.sleep(POLL_S)


# The stories.


class Stage:
    """A home with one project of two capsules, each with a holder; ended with the story."""

    def __init__(self, place):
        self.place = place
        self.home = place / "stage"
        (self.home / "locks").mkdir(parents=True)
        self.port = free_port()
        self.router = free_port()
        self.world = World(self.home)
        self.project = self.world.project()
        self.capsules = {
            name: self.world.capsule(self.project, name, web=self.port) for name in ("one", "two")
        }
        self.processes = []
        self.holders = {name: self._hold(name) for name in self.capsules}
        self.daemon = None

    def _start(self, *words):
        process = subprocess.Popen(
            [sys.executable, __file__, *map(str, words)],
            stdout=subprocess.PIPE,
            env={**os.environ, "ATOLL_ROUTER_PORT": str(self.router)},
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", words
        return process

    def _hold(self, name):
        (self.home / name).mkdir(exist_ok=True)
        return self._start("hold", self.home / name)

    def start_daemon(self):
        places = [f"{name}={self.home / name}" for name in self.capsules]
        self.daemon = self._start("publish", self.home, *places)

    def kill_daemon(self):
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def serve(self, name, text, port=None, address="0.0.0.0"):
        with requests.connect(self.home / name) as wire_:
            requests.ask(wire_, {"serve": [address, port or self.port, text]})

    def checkout(self, name):
        """As a row in the store, which the daemon follows."""
        chosen = None if name is None else self.capsules[name].id
        self.world.session.store.set_checkout(self.project.id, chosen)

    def lease(self, name, service="web"):
        found = self.world.session.store.find_capsule(self.project.id, name)
        assert found is not None
        return found.ports.get(service)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        self.world.session.store.close()


def ask(port, data=b""):
    """What a port of the host sends; None when nothing listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(data)
            return client.recv(1000).decode() or None
    except ConnectionError:
        return None


def get(port, host):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return client.recv(1000).decode()


def until(predicate):
    deadline = time.monotonic() + PATIENCE_S
    while not (value := predicate()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def same_port_in_two_capsules(stage):
    stage.start_daemon()
    for name in stage.capsules:
        stage.serve(name, f"I am {name}")
    for name, capsule in stage.capsules.items():
        until(lambda port=capsule.ports["web"]: ask(port))
        assert ask(capsule.ports["web"]) == f"I am {name}"
    assert ask(stage.port) is None
    # Found without being declared; only on IPv6; on another address of the loopback; a low one.
    stage.serve("one", "six", 8006, "::1")
    stage.serve("one", "other", 8007, "127.0.0.53")
    stage.serve("two", "low", 80)
    for name, service, said in [
        ("one", "8006", "six"),
        ("one", "8007", "other"),
        ("two", "80", "low"),
    ]:
        assert ask(until(lambda n=name, s=service: stage.lease(n, s))) in (said, None)
        until(lambda n=name, s=service, t=said: ask(stage.lease(n, s)) == t)
    host = f"web.two--shop.localhost:{stage.router}"
    assert "I am two" in get(stage.router, host)
    assert " 421 " in get(stage.router, "evil.org")


def canonical_ports_move_under_load(stage):
    stage.start_daemon()
    for name in stage.capsules:
        stage.serve(name, name)
    stage.checkout("one")
    until(lambda: ask(stage.port) == "one")
    answers: Counter[object] = Counter()
    stop = threading.Event()

    def load():
        while not stop.is_set():
            answers[ask(stage.port)] += 1

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for name in ("two", "one", "two"):
        stage.checkout(name)
        until(lambda n=name: ask(stage.port) == n)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(answers) == {"one", "two"}, answers
    stage.checkout(None)
    until(lambda: ask(stage.port) is None)


def crash_and_restart(stage):
    stage.start_daemon()
    for name in stage.capsules:
        stage.serve(name, name)
    stage.serve("one", "extra", 8008)
    stage.checkout("one")
    until(lambda: ask(stage.port) == "one")
    extra = until(lambda: stage.lease("one", "8008"))
    until(lambda: ask(extra) == "extra")
    with socket.create_connection(("127.0.0.1", stage.port)) as client:
        assert client.recv(10) == b"one"
        stage.kill_daemon()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(10) == b""
    assert ask(stage.port) is None
    stage.start_daemon()
    until(lambda: ask(stage.port) == "one")
    until(lambda: ask(extra) == "extra")
    assert stage.lease("one", "8008") == extra
    # The holder goes, and comes back: under the same ports.
    stage.holders["one"].kill()
    stage.holders["one"].wait()
    until(lambda: ask(extra) is None)
    stage.holders["one"] = stage._hold("one")
    stage.serve("one", "again")
    until(lambda: ask(stage.capsules["one"].ports["web"]) == "again")
    until(lambda: ask(stage.port) == "again")


def stranger_takes_a_port_meanwhile(stage):
    with socket.create_server(("127.0.0.1", stage.port)):
        stage.start_daemon()
        stage.serve("one", "one")
        stage.checkout("one")
        until(lambda: ask(stage.capsules["one"].ports["web"]) == "one")
    until(lambda: ask(stage.port) == "one")


STORIES = {
    story.__name__: story
    for story in (
        same_port_in_two_capsules,
        canonical_ports_move_under_load,
        crash_and_restart,
        stranger_takes_a_port_meanwhile,
    )
}


def tell(name, place):
    stage = Stage(place)
    try:
        STORIES[name](stage)
    finally:
        stage.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    match sys.argv[1:]:
        case ["hold", directory]:
            hold(Path(directory))
        case ["publish", home, *words]:
            pairs = dict(word.split("=", 1) for word in words)
            asyncio.run(publish(Path(home), {name: Path(place) for name, place in pairs.items()}))
        case ["story", name, place]:
            tell(name, Path(place))
