from __future__ import annotations

import asyncio
import contextlib
import os
import time

import pytest

from atoll.daemon import background_freeze, checkout_watcher
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.host import procfs
from atoll.host.tree.tree_watch import WatchLost, require_local
from atoll.model.daemon_messages import ChangesReply, ChangesRequest


def test_answer_that_is_too_long_lists_nothing():
    short, long = ("a", "b"), tuple(f"{n}{'x' * 100}" for n in range(1_000))
    assert checkout_watcher._listed(short) == ("a", "b")
    assert checkout_watcher._listed(long) is None
    assert checkout_watcher._listed(None) is None


def due(*, stale=True, changed_ago_s=60.0, freeze_in_s=0.0):
    one = checkout_watcher._Checkout("p", "/p")
    now = time.monotonic()
    one.is_stale, one.changed_at, one.freeze_at = stale, now - changed_ago_s, now + freeze_in_s
    return checkout_watcher._is_due(one)


def test_a_checkout_is_frozen_when_it_has_changed_and_is_quiet():
    assert due()
    assert not due(stale=False)
    assert not due(changed_ago_s=0.0)
    assert not due(freeze_in_s=60.0)


@pytest.mark.parametrize(
    ("free", "inodes", "has_room"),
    [(0.5, 0.5, True), (0.05, 0.5, False), (0.5, 0.05, False)],
    ids=["room", "full", "no inodes"],
)
def test_no_freeze_on_a_disk_that_is_nearly_full(tmp_path, monkeypatch, free, inodes, has_room):
    real = os.statvfs(tmp_path)
    blocks = (1 << 40) // real.f_frsize
    fields = (real.f_bsize, real.f_frsize, blocks, 0, int(blocks * free), 1000, 0,
              int(1000 * inodes), 0, 255)  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    assert background_freeze.has_room(tmp_path) is has_room


@pytest.fixture
def session(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    made = Session(home=home, store=Store(home), owner={})
    yield made
    made.store.close()


@pytest.fixture
def sleeper(tmp_path, session, monkeypatch):
    """A daemon whose freeze in the background takes for ever, and how to find that process."""
    label = f"{tmp_path}/sleeper"
    argv = ["sh", "-c", "sleep 1000 & wait", label]
    monkeypatch.setattr(checkout_watcher, "python_command", lambda *_: argv)
    return checkout_watcher.CheckoutWatcher(session), label


def is_gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def processes_of(label):
    return [p.pid for p in procfs.processes().values() if label in p.command]


def test_freeze_in_the_background_ends_with_the_daemon(sleeper, wait_for):
    daemon, label = sleeper

    async def stop_in_the_middle():
        task = asyncio.create_task(daemon._freeze(checkout_watcher._Checkout("p", "/p")))
        while not processes_of(label):  # noqa: ASYNC110 - the kernel sets no event
            await asyncio.sleep(0)
        assert daemon.is_freezing
        group = processes_of(label)[0]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return group

    group = asyncio.run(stop_in_the_middle())
    assert processes_of(label) == []
    assert not daemon.is_freezing
    # The program that it had started is in its group, and killed with it.
    wait_for(lambda: is_gone(group), what="the end of its programs")


def test_freeze_that_fails_is_not_repeated_before_the_next_change(session, monkeypatch):
    monkeypatch.setattr(checkout_watcher, "python_command", lambda *_: ["false"])
    one = checkout_watcher._Checkout("p", "/p")
    assert checkout_watcher._is_due(one)
    asyncio.run(checkout_watcher.CheckoutWatcher(session)._freeze(one))
    assert not one.is_stale


def test_watch_that_a_moved_directory_ends_is_followed_by_another_at_once(session, tmp_path):
    root = tmp_path / "checkout"
    (root / "a").mkdir(parents=True)
    try:
        require_local(str(root))
    except WatchLost as reason:
        pytest.skip(f"the directory for tests cannot be watched: {reason}")
    daemon = checkout_watcher.CheckoutWatcher(session)
    one = daemon._checkouts["p"] = checkout_watcher._Checkout("p", str(root))

    def ask(before):
        request = ChangesRequest("p", str(root), before.watch, before.position)
        return asyncio.run(daemon.changes(request))

    try:
        first = ask(ChangesReply())
        (root / "a").rename(root / "b")
        one.watch_at = time.monotonic() + 60
        assert ask(first) == ChangesReply(), "not more often than the rate allows"
        one.watch_at = 0.0
        first = ask(ChangesReply())
        (root / "b").rename(root / "c")
        one.watch_at = 0.0
        second = ask(first)
        assert second.watch not in ("", first.watch)
        assert second.paths is None
        (root / "c" / "file").touch()
        assert ask(second).paths == ("c/file",)
    finally:
        one.stop()


def test_checkout_that_cannot_be_watched_is_not_tried_again_soon(tmp_path):
    one = checkout_watcher._Checkout("p", str(tmp_path))
    with pytest.raises(WatchLost):
        one.start(0, ())
    assert one.watch is None
    assert one.watch_at > time.monotonic()
