"""What the daemon does for the network of each capsule, and nothing else of it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from granted import FileSecrets
from sockets import DATAGRAM, STREAM, V4, V6, made_in

from atoll.daemon.broker.broker import Broker
from atoll.daemon.broker.granted_secrets import GrantedSecrets
from atoll.daemon.broker.taps import NoMeter
from atoll.daemon.broker.tls_streams import ServerTrust
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.gateway import Egress, HostPortForward
from atoll.daemon.egress.host_network import HostNetwork
from atoll.daemon.egress.limits import EgressShare
from atoll.daemon.fair_loop import FairLoop, LoopShare, enter_share
from atoll.drivers.contracts import EgressSockets
from atoll.keeper.networks import CAUGHT_PORT, NAMES_PORT, PROXY_PORT
from atoll.model.egress import Policy

GRANTED = 5432
LOOPBACK = {V4: "127.0.0.1", V6: "::1"}


def open_door(place: Path, family: int, kind: int, port: int):
    (sock,) = made_in(place, (family, kind))
    sock.setblocking(False)
    sock.bind((LOOPBACK[family], port))
    if kind == STREAM:
        sock.listen(4096)
    return sock


def read_policy(place: Path) -> Policy:
    return Policy.of(**json.loads((place / "policy.json").read_text()))


async def serve(share: LoopShare, serving) -> None:
    enter_share(share)
    await serving


async def main() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    world = HostNetwork.of(os.environ)
    trust = ServerTrust(os.environ.get("SSL_CERT_FILE"))
    async with asyncio.TaskGroup() as group:
        for place in map(Path, sys.argv[1:]):
            journal = Journal(place)
            policy = functools.partial(read_policy, place)
            parts: dict[str, Any] = {
                "capsule": place.name,
                "policy": policy,
                "journal": journal,
                "host_network": world,
            }
            parts["share"] = EgressShare()
            sockets = EgressSockets(
                proxy=open_door(place, V4, STREAM, PROXY_PORT),
                transparent=tuple(open_door(place, f, STREAM, CAUGHT_PORT) for f in (V4, V6)),
                dns=tuple(open_door(place, f, DATAGRAM, NAMES_PORT) for f in (V4, V6)),
                dns_streams=tuple(open_door(place, f, STREAM, NAMES_PORT) for f in (V4, V6)),
            )
            share = LoopShare()
            secrets = GrantedSecrets(FileSecrets(place / "secrets.json"))
            broker = Broker(secrets, place, trust, NoMeter())
            egress = Egress(**parts, directory=place, broker=broker)
            group.create_task(serve(share, egress.serve(sockets)))
            listeners = [open_door(place, family, STREAM, GRANTED) for family in (V4, V6)]
            group.create_task(serve(share, HostPortForward(GRANTED, **parts).serve(listeners)))
        sys.stdout.write(json.dumps({"pid": os.getpid()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(main())
