"""Builds a small internet, a host and two capsules out of namespaces, and keeps them until its
input ends. Needs no privileges but those of a user namespace.

    director.py PLACE    in new user, network and mount namespaces, which are the host's
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
PLACE = Path(sys.argv[1])
CAPSULES = {"tight": "allow", "wide": "open"}
WORLD = ["93.184.216.34/32", "93.184.216.35/32", "93.184.216.36/32", "93.184.216.53/32",
         "10.99.0.1/32",
         "169.254.169.254/32", "2606:2800:220:1::34/128"]  # fmt: skip


def run(*argv: object) -> None:
    subprocess.run([str(part) for part in argv], check=True)


class Actor:
    """A process that says in one line that it is ready."""

    def __init__(self, *argv: object, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.pid = self.process.pid

    def ready(self) -> None:
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise SystemExit(f"{self.process.args!r} did not start")


def build_internet() -> Actor:
    actor = Actor("unshare", "--net", sys.executable, "-c", WAITS, HERE / "internet.py", PLACE)
    actor.ready()
    inside = ["nsenter", "--net", "--target", actor.pid, "ip"]
    run("ip", "link", "add", "h0", "type", "veth", "peer", "name", "w0", "netns", actor.pid)
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "link", "set", "w0", "up")
    run(*inside, "addr", "add", "10.77.0.2/24", "dev", "w0")
    run(*inside, "-6", "addr", "add", "fd77::2/64", "dev", "w0", "nodad")
    for address in WORLD:
        extra = ["nodad"] if ":" in address else []
        run(*inside, "addr", "add", address, "dev", "w0", *extra)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "set", "h0", "up")
    run("ip", "addr", "add", "10.77.0.1/24", "dev", "h0")
    run("ip", "-6", "addr", "add", "fd77::1/64", "dev", "h0", "nodad")
    run("ip", "route", "add", "default", "via", "10.77.0.2")
    run("ip", "-6", "route", "add", "default", "via", "fd77::2")
    (PLACE / "go").touch()
    actor.ready()
    return actor


# It waits for its network before it becomes the internet.
WAITS = """
import os, sys, time
print("waiting", flush=True)
while not os.path.exists(sys.argv[2] + "/go"):
    time.sleep(0.01)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def serve_host() -> None:
    """What the host itself runs: a database on its loopback, something on its own address."""
    for address, port in (("127.0.0.1", 5432), ("127.0.0.1", 8000), ("10.77.0.1", 8000)):
        server = socket.create_server((address, port), backlog=128)
        threading.Thread(target=greet, args=(server,), daemon=True).start()


def greet(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        client.sendall(b"the host's own\n")
        client.close()


def main() -> None:
    for name, text in (("resolv.conf", "nameserver 93.184.216.53\noptions timeout:1 attempts:1\n"),
                       ("hosts", "127.0.0.1 localhost\n")):  # fmt: skip
        (PLACE / name).write_text(text)
        run("mount", "--bind", PLACE / name, f"/etc/{name}")
    actors = [build_internet()]
    serve_host()
    told = {"internet": actors[0].pid, "host": os.getpid()}
    for name, mode in CAPSULES.items():
        (PLACE / name).mkdir()
        (PLACE / name / "policy.json").write_text(json.dumps({"mode": mode, "texts": []}))
        argv = ["unshare", "--net", "--mount", "--propagation", "private"]
        actor = Actor(*argv, sys.executable, HERE / "capsule.py", PLACE / name, mode)
        actor.ready()
        actors.append(actor)
        told[name] = actor.pid
    places = [PLACE / name for name in CAPSULES]
    exits = Actor(sys.executable, HERE / "exits.py", *places)
    exits.ready()
    actors.append(exits)
    told["exits"] = exits.pid
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    for actor in actors:
        actor.process.kill()
        actor.process.wait()


if __name__ == "__main__":
    main()
