"""The journal: bounded in size and in lines, private, and never in the way."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from atoll.daemon.egress import egress_log_writer as daemon_journal
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.engine.network.egress_log import FIRST, JOURNAL, OLDER, follow, read_attempts


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(daemon_journal, "_GATHER_S", 0.05)


def refuse(journal, place="evil.example", port=443):
    return journal.note(via="connect", place=place, port=port, allowed=False, why="no")


def begin(journal, place="good.example"):
    return journal.note(via="connect", place=place, port=443, allowed=True, why="rule")


def end(journal, number, place="good.example"):
    journal.note(
        via="connect", place=place, port=443, allowed=True, why="rule", sent=1, received=2,
        took_s=0.5, begun=number,
    )  # fmt: skip


def in_loop(function):
    async def run():
        function()

    asyncio.run(run())


def test_one_attempt_is_read_once(tmp_path):
    def write():
        journal = Journal(tmp_path)
        first, second = begin(journal), begin(journal, "other.example")
        end(journal, first)
        assert second > first
        refuse(journal)
        journal.close()

    in_loop(write)
    good, other, evil = read_attempts(tmp_path)
    assert (good.place, good.sent, good.received, good.took_s) == ("good.example", 1, 2, 0.5)
    assert (other.place, other.took_s) == ("other.example", None)
    assert (evil.allowed, evil.times) == (False, 1)
    assert (tmp_path / JOURNAL).stat().st_mode & 0o777 == 0o600


def test_equal_refusals_are_counted(tmp_path, soon):
    async def write():
        journal = Journal(tmp_path)
        for _ in range(5000):
            refuse(journal)
        assert len(read_attempts(tmp_path)) == 1
        await asyncio.sleep(0.2)
        refuse(journal)
        journal.close()

    asyncio.run(write())
    assert [attempt.times for attempt in read_attempts(tmp_path)] == [1, 4999, 1]


def test_many_different_refusals_become_a_number(tmp_path):
    def write():
        journal = Journal(tmp_path)
        for number in range(5000):
            refuse(journal, f"n{number}.example")
        journal.close()

    in_loop(write)
    found = read_attempts(tmp_path)
    assert len(found) == 101
    assert (found[-1].place, found[-1].times) == ("(others)", 4900)


def test_size_is_bounded_and_the_first_and_the_last_are_kept(tmp_path):
    def write():
        journal = Journal(tmp_path, most_bytes=10_000)
        for number in range(500):
            begin(journal, f"n{number}.example")
        journal.close()

    in_loop(write)
    for name in (FIRST, OLDER, JOURNAL):
        assert (tmp_path / name).stat().st_size <= 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL, FIRST, OLDER]
    found = [attempt.place for attempt in read_attempts(tmp_path)]
    early = (tmp_path / FIRST).read_bytes().count(b"\n")
    late = len(found) - early
    numbers = [*range(early), *range(500 - late, 500)]
    assert found == [f"n{number}.example" for number in numbers]


@pytest.fixture
def flooded(tmp_path):
    """Writes one attempt, then a flood, then another one. Gives what can be read then."""

    def flood(noise):
        (tmp_path / FIRST).touch()  # only the last files count here

        seconds = [0.0]

        def write():
            journal = Journal(tmp_path, most_bytes=2 << 20, clock=lambda: seconds[0])
            end(journal, begin(journal, "early.example"), "early.example")
            noise(journal)
            end(journal, begin(journal, "late.example"), "late.example")
            seconds[0] += 60
            journal.close()

        in_loop(write)
        return read_attempts(tmp_path)

    return flood


def connect_often(journal):
    for number in range(30_000):
        place = f"n{number % 20}.example"
        end(journal, begin(journal, place), place)


def test_flood_of_connections_hides_nothing(flooded):
    found = flooded(connect_often)
    places = [attempt.place for attempt in found]
    assert places[0] == "early.example"
    assert "late.example" in places
    assert len(found) < 4500
    assert sum(attempt.times for attempt in found) == 30_002
    assert sum(attempt.sent for attempt in found) == 30_002
    assert sum(attempt.received for attempt in found) == 2 * 30_002


def test_flood_of_connections_without_a_bound_on_lines_hides_others(flooded, monkeypatch):
    """The control."""
    monkeypatch.setattr(daemon_journal, "LINE_BURST", 10**9)
    assert "early.example" not in [attempt.place for attempt in flooded(connect_often)]


def test_flood_of_refusals_hides_no_connection(flooded):
    def be_refused(journal):
        for number in range(30_000):
            refuse(journal, f"n{number}.example")
            if number % 50 == 0:
                journal.flush()

    found = flooded(be_refused)
    allowed = [attempt.place for attempt in found if attempt.allowed]
    assert allowed == ["early.example", "late.example"]
    assert sum(attempt.times for attempt in found if not attempt.allowed) == 30_000


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_only_a_file_of_ours_is_written(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place = tmp_path / "capsule"
    place.mkdir()
    if kind == "link":
        (place / JOURNAL).symlink_to(victim)
    else:
        os.mkfifo(place / JOURNAL)

    def write():
        journal = Journal(place)
        begin(journal)
        (place / JOURNAL).unlink()
        begin(journal)
        journal.close()

    in_loop(write)
    assert victim.read_text() == "precious"
    lost, later = read_attempts(place)
    assert (lost.place, lost.times) == ("(lost)", 1)
    assert later.place == "good.example"


def test_what_was_cut_short_is_passed_over(tmp_path):
    in_loop(lambda: [begin(Journal(tmp_path)), None][1])
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"at":1,"via":\n[1]\nnull\n{"at": 2}\n\xff\n{"at":1,"via"')
    assert [attempt.place for attempt in read_attempts(tmp_path)] == ["good.example"]


def test_missing_journal_is_an_empty_one(tmp_path):
    assert read_attempts(tmp_path) == []


def test_following_sees_what_comes_even_in_a_new_file(tmp_path):
    looks, over = threading.Event(), threading.Event()

    def is_over():
        looks.set()
        return over.is_set()

    def write(journal, first):
        for number in range(first, first + 10):
            begin(journal, f"n{number}.example")

    async def run():
        journal = Journal(tmp_path, most_bytes=2500)
        begin(journal, "before.example")
        task = asyncio.create_task(asyncio.to_thread(lambda: list(follow(tmp_path, until=is_over))))
        await asyncio.to_thread(looks.wait, 10)
        for first in range(0, 50, 10):
            write(journal, first)
            # Between two looks that began after it was written, it was read.
            for _ in range(2):
                looks.clear()
                await asyncio.to_thread(looks.wait, 10)
        over.set()
        seen = await asyncio.wait_for(task, 10)
        journal.close()
        return [attempt.place for attempt in seen]

    assert asyncio.run(run()) == [f"n{number}.example" for number in range(50)]
    assert (tmp_path / OLDER).exists()


def test_lines_are_plain_json(tmp_path):
    in_loop(lambda: [begin(Journal(tmp_path), "good.example"), None][1])
    (line,) = (tmp_path / JOURNAL).read_text().splitlines()
    assert json.loads(line)["place"] == "good.example"
