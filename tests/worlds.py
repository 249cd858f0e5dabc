"""Real sockets on the loopback, a real store, and a network of a capsule's own, played by the
host's: each port inside is another port out here.
"""

from __future__ import annotations

import asyncio
import socket

from atoll.daemon.ports.targets import HOST
from atoll.engine.capsule import parts
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.host.listening_sockets import Listening
from atoll.model.plan import CapsulePlan, IsolationPlan, WorkspacePlan
from atoll.model.state import ProjectRecord


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def plan_of(name, level, numbers, project="shop"):
    commit = "c" * 40
    return CapsulePlan(
        name=name,
        project=project,
        level=level,
        base_ref="main",
        base_commit=commit,
        directory=f"/h/{name}",
        workspace=WorkspacePlan("worktree", "/r/.git", "/r", f"/w/{name}", None, commit),
        isolation=IsolationPlan("process", "/w", "/p", {}),
        ports=tuple(numbers),
        numbers=dict(numbers),
    )


class Played:
    """An `Inside` whose port n is the host's port `doors[n]`."""

    def __init__(self, capsule):
        self.capsule = capsule
        self.doors = {}

    async def dial(self, port, address="127.0.0.1"):  # noqa: ARG002 - there is but one here
        if port not in self.doors:
            raise ConnectionRefusedError(111, "refused")
        return await HOST.dial(self.doors[port])

    def found(self):
        return {Listening("127.0.0.1", port) for port in self.doors}


class World:
    """A home with projects and capsules, and what listens in them."""

    def __init__(self, home):
        self.home = home
        self.session = Session(home=home, store=Store(home), owner={})
        self.next_port = 0
        self.servers = []
        self.now = 0.0
        self._returned_ports: set[int] = set()

    def clock(self):
        """Stands still until a test moves `now`."""
        return self.now

    def free_ports(self, count):
        """So many different ones, none of which is leased or was returned before."""
        found: set[int] = set()
        while len(found) < count:
            found |= {free_port()} - self.session.store.leased_ports() - self._returned_ports
        self._returned_ports |= found
        return sorted(found)

    def project(self, name="shop", number=1, root="/r"):
        record = ProjectRecord(f"{name}-{number:08x}", name, root, f"{root}/.git{number}")
        return self.session.store.remember_project(record)

    def capsule(self, project, name, level="sandbox", **numbers):
        leases = dict(zip(numbers, self.free_ports(len(numbers)), strict=True))
        plan = plan_of(name, level, numbers, project.name)
        return self.session.store.lease_capsules(project, [(plan, leases)], parts.leases)[0]

    async def serve(self, text, port=0):
        """Answers each connection with `text`, then echoes until its end. Returns its port."""

        async def answer(reader, writer):
            writer.write(text.encode())
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", port)
        self.servers.append(server)
        return server.sockets[0].getsockname()[1]

    async def close(self):
        for server in self.servers:
            server.close()
        self.session.store.close()


async def ask(port, address="127.0.0.1"):
    """What the server behind a port says first; None when nothing listens."""
    try:
        reader, writer = await asyncio.open_connection(address, port)
        said = await reader.read(100)
        writer.close()
    except ConnectionError:
        return None
    return said.decode() or None


async def until(predicate, timeout_s=10.0):
    async with asyncio.timeout(timeout_s):
        while not (value := predicate()):  # noqa: ASYNC110 - of things that tell nobody
            await asyncio.sleep(0.01)
    return value
