"""A capsule that listens on thousands of ports, or on others all the time.

What it costs is counted in statements of the store and in lines of Python, never in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from atoll.daemon.fair_loop import LoopShare
from atoll.daemon.ports import port_leases, port_report
from atoll.daemon.ports.port_leases import MAX_PORTS, plan_change
from atoll.daemon.ports.published_capsule import read_store
from atoll.daemon.served_capsules import ServedCapsule, ServedCapsules
from atoll.engine.network import ports
from atoll.host.listening_sockets import Listening, Listing
from atoll.testing.fake_network import FakeNetwork
from worlds import Played, ask, until

LOOK_S = 0.4


def places(numbers):
    return frozenset(Listening("127.0.0.1", number) for number in numbers)


@contextlib.contextmanager
def statements(world):
    """All SQL that the store executes meanwhile."""
    said: list[str] = []
    world.session.store._db.set_trace_callback(said.append)
    try:
        yield said
    finally:
        world.session.store._db.set_trace_callback(None)


def commits(said):
    return said.count("COMMIT")


@contextlib.contextmanager
def steps():
    """How many lines of Python this thread executes, as the only element of a list."""
    count = [0]

    def trace(frame, event, argument):
        count[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def known(world, capsule):
    return world.session.store.capsule(capsule.id)


async def cost(world, publisher, count):
    """Of a look at a new capsule that listens on so many ports: statements, commits, steps."""
    capsule = world.capsule(world.project(), f"fix{count}", web=3000)
    await publisher.sync()
    with statements(world) as said, steps() as lines:
        await publisher.update(Played(capsule), places(range(10_000, 10_000 + count)))
    assert len(known(world, capsule).ports) == MAX_PORTS
    return len(said), commits(said), lines[0]


async def former_cost(world, count):
    """Of the algorithm before: port after port, each with a transaction and a look at the whole
    store, or with a look at the whole listing for each lease.
    """
    capsule = world.capsule(world.project(), f"old{count}", web=3000)
    found = places(range(10_000, 10_000 + count))

    def listening():
        ports_now = set()
        for place in found:
            ports_now.add(place.port)
        return ports_now

    with statements(world) as said, steps() as lines:
        current = capsule
        for number in sorted(listening()):
            if len(current.ports) < MAX_PORTS:
                ports.lease_more(world.session, capsule, {str(number): number})
                current = read_store(world.session).capsules[capsule.id]
                continue
            for leased in current.numbers.values():
                assert leased == 3000 or leased in listening()
    return len(said), commits(said), lines[0]


def test_look_costs_one_transaction_and_linear_work(play):
    async def story(world, publisher):
        few, many = [await cost(world, publisher, count) for count in (250, 2000)]
        # Statements depend on the leases that are written, not on what listens.
        assert many[0] == few[0] < 4 * MAX_PORTS
        assert many[1] == few[1] == 1
        assert many[2] < 12 * few[2]
        # A listing that stays as it is costs the store nothing.
        capsule = world.session.store.capsules()[-1]
        one = publisher.attached[capsule.id]
        with statements(world) as said:
            for _ in range(20):
                await publisher.update(one.inside, places(range(10_000, 12_000)))
        assert said == []

    play(story)


def test_former_algorithm_is_seen_by_these_counts(play):
    """The control."""

    async def story(world, publisher):
        del publisher
        few, many = [await former_cost(world, count) for count in (100, 200)]
        assert few[1] == many[1] == MAX_PORTS - 1
        assert few[0] > 3 * MAX_PORTS
        assert many[2] > 4 * few[2]

    play(story)


async def churn(world, publisher, looks):
    """Other ports in each look; returns the commits."""
    capsule = world.capsule(world.project(), "fix", web=3000)
    inside = Played(capsule)
    await publisher.sync()
    with statements(world) as said:
        for number in range(looks):
            start = 10_000 + number * 300
            await publisher.update(inside, places(range(start, start + 300)))
            assert len(known(world, capsule).ports) <= MAX_PORTS
            world.now += LOOK_S
    return commits(said)


def test_ports_that_change_all_the_time_are_written_seldom(play):
    looks = 100
    seconds = looks * LOOK_S

    async def story(world, publisher):
        assert await churn(world, publisher, looks) <= 1 + seconds / port_leases.RECYCLE_AFTER_S

    play(story)


def test_without_the_rate_limit_each_look_would_write(play, monkeypatch):
    """The control."""
    monkeypatch.setattr(port_leases, "RECYCLE_AFTER_S", 0.0)
    monkeypatch.setattr(port_leases, "COALESCE_S", 0.0)

    async def story(world, publisher):
        assert await churn(world, publisher, 20) == 20

    play(story)


def test_new_ports_one_by_one_are_written_together(play):
    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix")
        inside = Played(fix)
        await publisher.sync()
        with statements(world) as said:
            for count in range(1, 30):
                await publisher.update(inside, places(range(10_000, 10_000 + count)))
        assert commits(said) == 1
        world.now += port_leases.COALESCE_S
        await publisher.update(inside, places(range(10_000, 10_029)))
        assert len(known(world, fix).ports) == 29

    play(story)


async def restart_beside_a_flood(world, publisher):
    """Whether an undeclared server keeps its lease while it restarts and its neighbours flood."""
    fix = world.capsule(world.project(), "fix")
    inside = Played(fix)
    await publisher.update(inside, places([50_000]))
    lease = known(world, fix).ports["50000"]
    world.now += 5
    await publisher.update(inside, places(range(10_000, 12_000)))
    world.now += 5
    await publisher.update(inside, places([50_000, *range(10_000, 12_000)]))
    return known(world, fix).ports.get("50000") == lease


def test_url_of_a_server_that_restarts_stays_the_same(play):
    async def story(world, publisher):
        assert await restart_beside_a_flood(world, publisher)

    play(story)


def test_without_the_hysteresis_a_restart_would_lose_the_lease(play, monkeypatch):
    """The control."""
    monkeypatch.setattr(port_leases, "RECYCLE_AFTER_S", 0.0)

    async def story(world, publisher):
        assert not await restart_beside_a_flood(world, publisher)

    play(story)


async def second_run(world, publisher):
    """Whether the port of a second run is published at once after a first one that had too many."""
    fix = world.capsule(world.project(), "fix")
    await publisher.update(Played(fix), places(range(10_000, 12_000)))
    world.now += 5
    await publisher.forget(fix.id)
    await publisher.update(Played(fix), places([50_000]))
    return "50000" in known(world, fix).ports


def test_leases_of_a_former_run_make_room_at_once(play):
    async def story(world, publisher):
        assert await second_run(world, publisher)

    play(story)


def test_leases_of_the_same_run_stay_for_a_while(play):
    """The control: the flood ends, but the network stays."""

    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix")
        inside = Played(fix)
        await publisher.update(inside, places(range(10_000, 12_000)))
        world.now += 5
        await publisher.update(inside, places([50_000]))
        assert "50000" not in known(world, fix).ports
        world.now += port_leases.RECYCLE_AFTER_S
        await publisher.update(inside, places([50_000]))
        assert "50000" in known(world, fix).ports

    play(story)


def test_port_that_is_declared_later_comes_first(play, tmp_path):
    async def story(world, publisher):
        fix = world.capsule(world.project(root=str(tmp_path)), "fix")
        inside = Played(fix)
        await publisher.update(inside, places(range(10_000, 12_000)))
        assert len(known(world, fix).ports) == MAX_PORTS
        (tmp_path / "atoll.toml").write_text('[services.api]\ncommand = "x"\nport = 40000\n')
        # At once, although the last transaction was just now.
        await publisher.update(inside, places([*range(10_000, 12_000), 40_000]))
        after = known(world, fix)
        assert after.numbers["api"] == 40_000
        assert len(after.ports) == MAX_PORTS

    play(story)


def test_plan_gives_up_no_declared_lease(play):
    async def story(world, publisher):
        del publisher
        many = {f"s{number}": 3000 + number for number in range(MAX_PORTS + 5)}
        fix = world.capsule(world.project(), "fix", **many)
        change = plan_change(fix, {9000, 9001}, {"new": 9001}, [])
        assert change == ({}, ())

    play(story)


def test_incomplete_listing_hides_no_leased_port(play):
    """What a listing leaves out is tried, so the flood of a neighbour closes no door."""

    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=3000)
        inside = Played(fix)
        inside.doors[3000] = await world.serve("web")
        flood = places(range(10_000, 14_000))
        await publisher.update(inside, flood, is_complete=False)
        assert await ask(fix.ports["web"]) == "web"
        [row] = [r for r in (await publisher.status(fix.project_id))["ports"] if r["name"] == "web"]
        assert row["state"] == port_report.UNKNOWN
        # The control: a complete listing that does not name it closes it.
        await publisher.update(inside, flood)
        assert await ask(fix.ports["web"]) is None

    play(story)


def test_named_and_declared_ports_are_in_the_table_of_a_flood(play):
    async def story(world, publisher):
        project, named = world.project(), world.free_ports(1)[0]
        fix = world.capsule(project, "fix", web=3000)
        await publisher.update(Played(fix), places(range(10_000, 13_000)))
        told = await publisher.checkout(project.id, fix.id, [named])
        rows = told["ports"]
        assert (len(rows), told["more"] > 2000) == (200, True)
        assert [row["inside"] for row in rows[:2]] == [3000, named]
        states = [row["state"] for row in rows[2:]]
        published = states.count(port_report.LISTENING)
        assert published == MAX_PORTS - 1
        assert states[published:] == [port_report.UNPUBLISHED] * (198 - published)

    play(story)


def test_leased_ports_are_in_the_table_when_the_listing_names_others(play):
    """An incomplete listing names other ports each time."""

    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix")
        for start in (10_000, 20_000):
            flood = places(range(start, start + 4000))
            await publisher.update(Played(fix), flood, is_complete=False)
        rows = (await publisher.status(fix.project_id))["ports"]
        leased = [row["state"] for row in rows if row["dynamic"]]
        assert leased == [port_report.UNKNOWN] * MAX_PORTS

    play(story)


def test_one_capsules_store_write_delays_no_other_capsule(play):
    async def story(world, publisher):
        project = world.project()
        slow, quick = (world.capsule(project, name, web=3000) for name in ("slow", "quick"))
        inside = Played(quick)
        inside.doors[3000] = await world.serve("quick")
        await publisher.sync()
        with contextlib.closing(sqlite3.connect(world.home / "state.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.create_task(publisher.update(Played(slow), places([8000])))
            await publisher.update(inside, inside.found())
            assert await ask(quick.ports["web"]) == "quick"
            assert not writing.done()
            other.execute("ROLLBACK")
        await writing
        assert "8000" in known(world, slow).ports

    play(story)


class Looked(Played):
    """A capsule that is its own network, and answers only when it is `open`."""

    def __init__(self, capsule):
        super().__init__(capsule)
        self.network, self.granted = self, ()
        self.share, self.problems = LoopShare(), {}
        self.open, self.asked = asyncio.Event(), 0
        self.look: Callable[[], Any] = self.found

    def may_have_changed(self):
        return True

    async def listening(self):
        self.asked += 1
        await self.open.wait()
        return Listing(frozenset(self.look()))


def attached(*capsules):
    """In place of served ones: of those only the ports are looked at here."""
    return {one.capsule.id: cast("ServedCapsule", one) for one in capsules}


def test_capsule_that_does_not_answer_delays_no_other(play):
    async def story(world, publisher):
        project = world.project()
        stuck, quick = (
            Looked(world.capsule(project, name, web=3000)) for name in ("stuck", "quick")
        )
        quick.doors[3000] = await world.serve("quick")
        quick.open.set()
        capsules = ServedCapsules(world.session, publisher, FakeNetwork)
        capsules._attached = attached(stuck, quick)
        serving = asyncio.create_task(capsules.serve())
        await until(lambda: quick.asked >= 3)
        assert await ask(quick.capsule.ports["web"]) == "quick"
        # It was asked first, and is not asked again before it has answered.
        assert stuck.asked == 1
        stuck.open.set()
        await until(lambda: stuck.asked >= 2)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        capsules._host_network.close()

    play(story)


def test_error_over_one_capsule_is_reported_and_stops_no_other(play):
    async def story(world, publisher):
        project = world.project()
        broken, quick = (
            Looked(world.capsule(project, name, web=3000)) for name in ("broken", "quick")
        )
        broken.look = quick.open.set
        quick.doors[3000] = await world.serve("quick")
        broken.open.set()
        logged = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: logged.append(told))
        capsules = ServedCapsules(world.session, publisher, FakeNetwork)
        capsules._attached = attached(broken, quick)
        serving = asyncio.create_task(capsules.serve())
        await until(lambda: quick.asked >= 3 and broken.asked >= 3)
        assert await ask(quick.capsule.ports["web"]) == "quick"
        assert "TypeError" in broken.problems["ports"]
        assert quick.problems == {}
        # Once, though it fails at every look.
        assert [type(told["exception"]) for told in logged] == [TypeError]
        broken.look = list
        await until(lambda: broken.problems == {})
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        capsules._host_network.close()

    play(story)


def test_full_range_of_leases_does_not_end_the_daemon(play, monkeypatch):
    async def story(world, publisher):
        taken = await world.serve("a stranger")
        monkeypatch.setattr(ports, "FIRST", taken)
        monkeypatch.setattr(ports, "LAST", taken)
        fix = world.capsule(world.project(), "fix", web=3000)
        inside = Played(fix)
        inside.doors = dict.fromkeys((3000, 8000), await world.serve("web"))
        await publisher.update(inside, inside.found())
        assert await ask(fix.ports["web"]) == "web"
        told = await publisher.status(fix.project_id)
        assert [row["name"] for row in told["ports"] if row["dynamic"] is None] == ["8000"]

    play(story)
