"""Holders that are started with a group of their own: their errors reach whoever starts them."""

from __future__ import annotations

import os
import select

import pytest

from atoll.host import locks
from atoll.host.nursery import Confined, Nursery
from atoll.model.errors import DriverError


@pytest.fixture
def nursery(tmp_path):
    made = Nursery(f"{tmp_path}/")
    yield made
    made.close()


def test_view_that_cannot_be_built_is_reported_with_its_reason(nursery, tmp_path):
    """It ends without reading its group: what could not be sent must not hide the reason."""
    holders = []

    def confine(holder):
        holders.append(holder)
        # Until it has ended, so that nothing reads what is sent.
        await_end(holder)
        return Confined({}, is_scoped=False)

    view = {"directory": str(tmp_path), "pool": str(tmp_path / "nowhere"), "mounts": [{}]}
    lock = locks.Lock(tmp_path / "lock")
    lock.acquire()
    with lock, pytest.raises(DriverError):
        nursery.hold(view, lock.fd, confine)
    assert len(holders) == 1


def await_end(pid):
    handle = os.pidfd_open(pid)
    try:
        select.select([handle], [], [], 60)
    finally:
        os.close(handle)
