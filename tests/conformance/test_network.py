"""The network of a capsule at level `sandbox`, which its holder keeps, and the fake of it."""

from __future__ import annotations

import pytest

from atoll.daemon.holder_network import HolderNetwork
from atoll.engine.enclosure import views
from atoll.engine.projects import open_project
from atoll.host import view_client
from atoll.testing.conformance.network import NetworkSuite
from atoll.testing.fake_network import FakeNetwork
from persons import require


@pytest.mark.quick
class TestFake(NetworkSuite):
    def network(self):
        return self.__dict__.setdefault("_network", FakeNetwork())

    def end(self, network):
        network.end()


class TestHolder(NetworkSuite):
    @pytest.fixture(autouse=True)
    def _capsule(self, repo, monkeypatch):
        """A capsule whose view is open, without a daemon that would use its network, too."""
        require("bwrap")
        monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
        project = open_project(repo, background=False)
        self._session = project.session
        try:
            capsule = project.new("x", network="allow")
            self._record = capsule.record
            views.open_view(self._session, self._record)
            yield
            capsule.remove(force=True)
            assert view_client.ask(self._record.directory, {"ping": True}) is None
        finally:
            self._session.forkserver.close()
            self._session.store.close()

    def network(self):
        return HolderNetwork(self._record.directory)

    def end(self, network):
        del network
        views.end_view(self._session, self._record)
