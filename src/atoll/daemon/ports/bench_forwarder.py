"""A program for `atoll bench network`: carries ports in one loop, as the daemon does."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from atoll.daemon.fair_loop import FairLoop, LoopShare, enter_share
from atoll.daemon.ports.host_listeners import PortConnections, accept, forward_connection, listen
from atoll.daemon.ports.targets import HOST, LOOPBACK, Target


def main() -> None:
    """`PORT…`: prints one port for each target, in order; each has a share of the loop.

    Never returns.
    """

    async def serve(sockets: list[socket.socket], port: int) -> None:
        enter_share(LoopShare())
        connections, target = PortConnections(), Target(HOST, port, LOOPBACK[:1])
        accept(sockets, lambda client: connections.serve(forward_connection(client, target)))
        await asyncio.Event().wait()

    async def serve_all() -> None:
        leads = [(listen(0), port) for port in map(int, sys.argv[1:])]
        ports = [sockets[0].getsockname()[1] for sockets, _ in leads]
        os.write(1, " ".join(map(str, ports)).encode() + b"\n")
        await asyncio.gather(*(serve(sockets, port) for sockets, port in leads))

    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(serve_all())
