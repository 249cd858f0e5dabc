"""What TLS may say on a connection that was let through to one place."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from atoll.daemon.egress.journal import Journal
from atoll.daemon.egress.reaching import Refusal, Way
from atoll.daemon.egress.shares import Share
from atoll.daemon.egress.tunnels import require_agreement
from atoll.daemon.egress.world import World
from atoll.drivers.network.hello import Hello
from atoll.model.egress import Destination, Policy

NAME = Destination("allowed.example", 443)
NUMBER = Destination(ip_address("93.184.216.34"), 443)


@pytest.mark.parametrize(
    ("wanted", "name", "has_ech", "is_fine"),
    [
        (NAME, "allowed.example", False, True),
        (NAME, "allowed.example", True, True),
        (NAME, "denied.example", False, False),
        (NAME, "www.allowed.example", False, False),
        (NAME, "cover.example", True, False),
        (NAME, None, False, False),
        (NAME, None, True, False),
        (NUMBER, None, False, True),
        (NUMBER, "allowed.example", False, True),
        (NUMBER, "denied.example", False, False),
        (NUMBER, "allowed.example", True, False),
        (NUMBER, None, True, False),
    ],
)
def test_hello_agrees_with_the_place(tmp_path, wanted, name, has_ech, is_fine):
    policy = Policy.of("allow", ["allowed.example", "93.184.216.34"])
    world = World(own=frozenset)
    way = Way(
        capsule="x",
        policy=lambda: policy,
        journal=Journal(tmp_path),
        world=world,
        share=Share(),
    )
    hello = Hello(name, has_ech=has_ech)
    if is_fine:
        require_agreement(way, hello, wanted)
    else:
        with pytest.raises(Refusal):
            require_agreement(way, hello, wanted)
    world.close()
