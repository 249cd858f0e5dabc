"""The log: bounded, readable while it is written, and after any accident."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from atoll.keeper import log
from atoll.keeper.wire import MessageKind

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 64 * 1024


def size_bytes(run_dir: Path) -> int:
    return sum(path.stat().st_size for path in run_dir.glob("log*.jsonl"))


def never(_seconds: float) -> None:
    pytest.fail("there was nothing to wait for")


def test_rotation_keeps_the_bound_and_the_end(keep):
    keeper = keep("seq", "200000", log_limit_bytes=LIMIT)
    keeper.wait_ended()
    expected = b"".join(b"%d\n" % number for number in range(1, 200001))
    assert LIMIT // 3 < size_bytes(keeper.run_dir) <= LIMIT
    for path in keeper.run_dir.glob("log*.jsonl"):
        assert path.stat().st_size <= LIMIT // 2
    first, *rest = log.read_log(keeper.run_dir)
    assert first.stream == "dropped"
    kept = b"".join(entry.data for entry in rest)
    assert first.dropped_bytes + len(kept) == len(expected)
    assert expected.endswith(kept)
    with open(keeper.run_dir / "log.1.jsonl", "rb") as file:
        assert json.loads(file.readline())["before"] == first.dropped_bytes


def test_bound_holds_for_the_worst_bytes(tmp_path):
    writer = log.LogWriter(str(tmp_path), 5000, 0.0)
    for _ in range(200):
        writer.write("out", b"\xff" * 999, 0.0)
        assert size_bytes(tmp_path) <= 5000
    writer.close(0.0)
    assert {entry.data[:1] for entry in log.read_log(tmp_path)} == {b"", b"\xff"}


def test_follow_across_rotations(tmp_path):
    """The follower is as fast as the writer: it misses nothing, whatever is dropped meanwhile."""
    writer = log.LogWriter(str(tmp_path), 4096, 0.0)
    is_ended = False
    steps = iter(range(500))

    def write_more(_seconds: float) -> None:
        nonlocal is_ended
        step = next(steps, None)
        if step is None:
            writer.close(0.0)
            is_ended = True
        else:
            writer.write("out", b"%d\n" % step * 5, 0.0)

    entries = list(log.follow_log(tmp_path, lambda: is_ended, write_more))
    assert [entry.stream for entry in entries if entry.stream != "out"] == []
    expected = b"".join(b"%d\n" % step * 5 for step in range(500))
    assert b"".join(entry.data for entry in entries) == expected


def test_follower_that_is_too_slow_is_reported(tmp_path):
    writer = log.LogWriter(str(tmp_path), 4096, 0.0)
    writer.write("out", b"begin", 0.0)
    entries = log.follow_log(tmp_path, lambda: True, never)
    assert next(entries).data == b"begin"
    for _ in range(100):
        writer.write("out", b"x" * 100, 0.0)
    writer.close(0.0)
    rest = list(entries)
    gap = [entry.dropped_bytes for entry in rest if entry.stream == "dropped"]
    assert len(gap) == 1
    assert gap[0] + sum(len(entry.data) for entry in rest) == 10_000


def test_follow_a_run(keep):
    keeper = keep("sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done")

    def wait(_seconds: float) -> None:
        before = size_bytes(keeper.run_dir)
        keeper.until(lambda: size_bytes(keeper.run_dir) != before or keeper.is_unlocked(), "news")

    entries = list(log.follow_log(keeper.run_dir, keeper.is_unlocked, wait))
    assert b"".join(entry.data for entry in entries) == b"1\n2\n3\n4\n5\n"
    times = [entry.time for entry in entries]
    assert times == sorted(times)


def test_missing_log(tmp_path):
    assert list(log.read_log(tmp_path)) == []
    assert list(log.follow_log(tmp_path, lambda: True, never)) == []
    assert list(log.follow_log(tmp_path / "absent", lambda: True, never)) == []


@pytest.mark.parametrize("torn", [b'{"t":1.0,"s":"out","d":"ha', b"\0" * 50, b"\xff\xff\n", b"7\n"])
def test_torn_last_line(tmp_path, torn):
    writer = log.LogWriter(str(tmp_path), LIMIT, 0.0)
    writer.write("out", b"whole", 0.0)
    writer.close(0.0)
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(torn)
    assert [entry.data for entry in log.read_log(tmp_path)] == [b"whole"]
    assert [entry.data for entry in log.follow_log(tmp_path, lambda: True, never)] == [b"whole"]


def test_crash_between_the_steps_of_a_rotation(tmp_path):
    writer = log.LogWriter(str(tmp_path), LIMIT, 0.0)
    writer.write("out", b"older", 0.0)
    os.rename(tmp_path / "log.jsonl", tmp_path / "log.1.jsonl")
    assert [entry.data for entry in log.read_log(tmp_path)] == [b"older"]
    assert [entry.data for entry in log.follow_log(tmp_path, lambda: True, never)] == [b"older"]


def test_log_that_cannot_be_written_does_not_stop_the_run(keep, tmp_path):
    run_dir = tmp_path / "full"
    run_dir.mkdir(mode=0o700)
    (run_dir / "log.next.jsonl").symlink_to("/dev/full")
    keeper = keep("sh", "-c", "echo hello; exit 3", run_dir=run_dir, foreground=True)
    client = keeper.client("foreground")
    assert client.read_to_end()["exit_code"] == 3
    assert client.out == b"hello\n"
    assert "No space left" in keeper.wait_ended().message
    assert list(log.read_log(run_dir)) == []


@pytest.fixture
def small_disk(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk(small_disk, keep):
    """The run itself fills the disk that its log and status are on, and later makes room."""
    script = (
        f"cat /dev/zero > {small_disk}/fill 2>/dev/null; head -c 300000 /dev/zero; sleep 1000 & "
        f"read x; rm {small_disk}/fill; echo last; exit 3"
    )
    run_dir = small_disk / "run"
    keeper = keep("sh", "-c", script, run_dir=run_dir, stdin="client", foreground=True)
    client = keeper.client("foreground")
    client.read_until(lambda: len(client.out) >= 300_000, "the output")
    client.send(MessageKind.STDIN, b"\n")
    assert client.read_to_end()["exit_code"] == 3
    status = keeper.wait_ended()
    assert "No space left" in status.message
    assert status.leftover == 1
    entries = list(log.read_log(run_dir))
    assert entries[-1].data == b"last\n"
    assert sum(len(entry.data) + entry.dropped_bytes for entry in entries) == 300_005


def test_full_disk_does_not_hide_the_outcome(small_disk, keep):
    keeper = keep(
        "sh", "-c", f"cat /dev/zero > {small_disk}/fill; exit 4", run_dir=small_disk / "run"
    )
    status = keeper.wait_ended()
    assert (status.reason, status.exit_code) == ("exited", 4)
    assert {path.name for path in keeper.run_dir.iterdir()} >= {"status.json", "log.jsonl"}
    assert not list(keeper.run_dir.glob("*spare*"))
