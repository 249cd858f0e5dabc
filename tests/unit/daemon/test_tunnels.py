"""What TLS may say on a connection that was let through to one place."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from atoll.daemon.egress.dialer import Dialer, Refusal
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.host_network import HostNetwork
from atoll.daemon.egress.limits import EgressShare
from atoll.daemon.egress.tunnels import require_agreement
from atoll.drivers.network.client_hello import Hello
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
    world = HostNetwork(own=frozenset)
    way = Dialer(
        capsule="x",
        policy=lambda: policy,
        journal=Journal(tmp_path),
        host_network=world,
        share=EgressShare(),
    )
    hello = Hello(name, has_ech=has_ech)
    if is_fine:
        require_agreement(way, hello, wanted)
    else:
        with pytest.raises(Refusal):
            require_agreement(way, hello, wanted)
    world.close()
