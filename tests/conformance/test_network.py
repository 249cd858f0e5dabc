"""The fake of a capsule's network; the real one is tried in integration/test_network.py."""

from __future__ import annotations

import pytest

from atoll.testing.conformance.network import NetworkSuite
from atoll.testing.fake_network import FakeNetwork

pytestmark = pytest.mark.quick


class TestFake(NetworkSuite):
    def network(self):
        return FakeNetwork()

    def end(self, network):
        network.end()
