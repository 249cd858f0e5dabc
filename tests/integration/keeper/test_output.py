"""Output arrives whole: at the client and in the log, however fast, slow or odd."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from atoll.keeper import log
from atoll.keeper.wire import MessageKind

MIB = 1024 * 1024


def memory_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0  # it is about to end


def test_stdin_goes_through(keep):
    keeper = keep("cat", foreground=True, stdin="client")
    client = keeper.client("foreground")
    data = os.urandom(300_000)
    for start in range(0, len(data), 50_000):
        client.send(MessageKind.STDIN, data[start : start + 50_000])
    client.send(MessageKind.STDIN_EOF)
    assert client.read_to_end()["exit_code"] == 0
    assert client.out == data
    keeper.wait_ended()
    assert keeper.logged()[-1000:] == data[-1000:]


def test_streams_are_kept_apart(keep):
    keeper = keep("sh", "-c", "echo out; echo err >&2; echo out", foreground=True)
    client = keeper.client("foreground")
    client.read_to_end()
    assert (client.out, client.err) == (b"out\nout\n", b"err\n")
    keeper.wait_ended()
    assert (keeper.logged("out"), keeper.logged("err")) == (b"out\nout\n", b"err\n")


def test_every_byte_comes_back_from_the_log(keep, tmp_path):
    data = bytes(range(256)) * 300 + "é€😀".encode() * 20_000 + os.urandom(10_000) + b"\xf0\x9f"
    (tmp_path / "data").write_bytes(data)
    keeper = keep("cat", "data")
    assert keeper.wait_ended().message is None
    assert keeper.logged() == data


def test_characters_are_not_cut_in_the_log(keep, python):
    program = (
        "import os, time\n"
        "for byte in '€😀'.encode():\n"
        "    os.write(1, bytes([byte])); time.sleep(0.02)"
    )
    keeper = keep(python, "-c", program)
    keeper.wait_ended()
    entries = list(log.read_log(keeper.run_dir))
    assert "".join(entry.data.decode() for entry in entries) == "€😀"


@pytest.mark.slow
def test_slow_client_slows_the_command_and_loses_nothing(keep, python):
    size = 50 * MIB
    program = (
        "import os\n"
        "block = bytes(range(256)) * 4096\n"
        "for _ in range(50):\n"
        "    view = memoryview(block)\n"
        "    while view: view = view[os.write(1, view):]\n"
    )
    keeper = keep(python, "-c", program, foreground=True)
    client = keeper.client("foreground")
    client.sock.settimeout(60)
    # As slow as it gets: nothing is taken until everything stands still.
    stand_still(keeper)
    before = memory_bytes(keeper.minder, "VmRSS")
    total, block = 0, bytes(range(256)) * 4096
    while client.ended is None:
        client.out.clear()
        client.read_once(16384)
        expected = (block + block)[total % 256 :][: len(client.out)]
        assert client.out == expected
        total += len(client.out)
    assert total == size
    assert client.ended["exit_code"] == 0
    assert 0 < before < 24 * MIB
    keeper.wait_ended()
    assert keeper.logged() == (block * 2)[-len(keeper.logged()) :]


def stand_still(keeper) -> None:
    """Wait until the keeper takes no more from the command, because its client takes nothing."""
    looks = [-1]

    def is_still() -> bool:
        taken = Path(f"/proc/{keeper.minder}/io").read_text().split()
        looks.append(int(taken[1]))
        return looks[-1] > MIB and len(looks) > 40 and looks[-1] == looks[-40]

    keeper.until(is_still, "the command to wait for its client")


def test_memory_stays_small_at_full_speed(keep):
    keeper = keep("head", "-c", str(200 * MIB), "/dev/zero", foreground=True)
    client = keeper.client("foreground")
    client.sock.settimeout(60)
    total = peak = 0
    while client.ended is None:
        client.out.clear()
        client.read_once(1 << 18)
        total += len(client.out)
        if client.ended is None:
            # Its last words may still be on their way when it is gone.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                peak = max(peak, memory_bytes(keeper.minder, "VmHWM"))
    assert total == 200 * MIB
    assert 0 < peak < 24 * MIB
    keeper.wait_ended()


def test_client_that_has_seen_enough(keep):
    keeper = keep("yes", foreground=True)
    client = keeper.client("foreground")
    client.read_until(lambda: len(client.out) > 10, "some output")
    client.close()
    status = keeper.wait_ended()
    assert (status.reason, status.signal) == ("hangup", signal.SIGHUP)


def test_last_words_are_not_lost(keep):
    for _ in range(20):
        keeper = keep("sh", "-c", "head -c 60000 /dev/zero; echo end >&2", foreground=True)
        client = keeper.client("foreground")
        client.read_to_end()
        assert len(client.out) == 60000
        assert client.err == b"end\n"
        keeper.wait_ended()


def test_client_that_pauses_at_the_end_gets_all(keep):
    """As a pager does: more is waiting than any buffer holds when the command ends."""
    keeper = keep("head", "-c", "900000", "/dev/zero", foreground=True)
    client = keeper.client("foreground")
    keeper.until(lambda: (now := keeper.status()) and now.state == "ended", "the end")
    assert not keeper.is_unlocked()
    client.read_to_end()
    assert len(client.out) == 900000
    keeper.wait_ended()


def test_stuck_client_does_not_hold_a_stopped_keeper(keep):
    keeper = keep("yes", foreground=True)
    client = keeper.client("foreground")
    stand_still(keeper)
    status = keeper.stop(grace_s=0.5)
    assert status.reason == "stopped"
    client.close()


def test_stdin_larger_than_the_keeper_will_hold(keep):
    keeper = keep("sleep", "1000", foreground=True, stdin="client")
    client = keeper.client("foreground")
    client.sock.settimeout(0.5)
    block, sent = b"x" * 65536, 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 * MIB:
            client.send(MessageKind.STDIN, block)
            sent += len(block)
    assert sent < 4 * MIB
    client.close()  # in the middle of a frame, while nothing is read from it
    assert keeper.wait_ended().reason == "hangup"


def test_command_that_closes_its_stdin(keep):
    keeper = keep("sh", "-c", "exec 0<&-; echo up; sleep 0.3", foreground=True, stdin="client")
    client = keeper.client("foreground")
    client.read_until(lambda: client.out, "the first word")
    client.send(MessageKind.STDIN, b"x" * 100_000)
    client.send(MessageKind.STDIN_EOF)
    assert client.read_to_end()["exit_code"] == 0
    keeper.wait_ended()


def test_child_that_holds_the_output_does_not_hold_the_run(keep):
    keeper = keep("sh", "-c", "sleep 1000 & echo done", foreground=True)
    client = keeper.client("foreground")
    ended = client.read_to_end()
    assert (ended["exit_code"], ended["leftover"], client.out) == (0, 1, b"done\n")
    keeper.wait_ended()
