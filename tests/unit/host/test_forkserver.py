"""Holders that are started in their own cgroup: their errors reach the starter."""

from __future__ import annotations

import os
import select

import pytest

from atoll.host import locks
from atoll.host.forkserver import Confined, ForkServer
from atoll.model.enclosure import HoldRequest, View
from atoll.model.errors import DriverError


@pytest.fixture
def forkserver(tmp_path):
    made = ForkServer(f"{tmp_path}/")
    yield made
    made.close()


def test_view_that_cannot_be_built_is_reported_with_its_reason(forkserver, tmp_path):
    """It ends without reading its group: what could not be sent must not hide the reason."""
    holders = []

    def confine(holder):
        holders.append(holder)
        # Until it has ended, so that nothing reads what is sent.
        await_end(holder)
        return Confined({})

    view = View(user=os.geteuid() != 0, pool=str(tmp_path / "nowhere"), mounts=())
    request = HoldRequest(view=view, directory=str(tmp_path), idle_s=1.0)
    lock = locks.Lock(tmp_path / "lock")
    lock.acquire()
    with lock, pytest.raises(DriverError):
        forkserver.hold(request, lock.fd, confine)
    assert len(holders) == 1


def await_end(pid):
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], 60)
    finally:
        os.close(handle)
