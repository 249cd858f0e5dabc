from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from atoll.engine.network import ports
from atoll.engine.state.store import PortTakenError
from atoll.host import sockets
from atoll.model.errors import PrerequisiteError, StateError
from worlds import World, free_port


class Registry:
    """A store that knows ports and nothing else."""

    def __init__(self, *leased):
        self.leased = set(leased)
        self.refusals = 0
        self._turn = threading.Lock()

    def leased_ports(self):
        with self._turn:
            return set(self.leased)

    def lease(self, found):
        with self._turn:
            if self.refusals:
                self.refusals -= 1
                raise PortTakenError
            if self.leased & set(found.values()):
                raise PortTakenError
            self.leased |= set(found.values())
        return found


def session_with(registry, home="/some/home"):
    return SimpleNamespace(store=registry, home=home)


def lease(session, names, commit):
    """For one capsule, as most tests need it."""
    return ports.lease_with_ports(session, [names], lambda found: [commit(found[0])])[0]


@pytest.fixture
def registry():
    return Registry()


def test_each_name_gets_its_own_port(registry):
    found = lease(session_with(registry), ("web", "db", "cache"), registry.lease)
    assert list(found) == ["web", "db", "cache"]
    assert len(set(found.values())) == 3
    assert all(ports.FIRST <= port <= ports.LAST for port in found.values())


def test_leased_port_is_never_handed_out_again(registry):
    session = session_with(registry)
    seen = [lease(session, ("web",), registry.lease)["web"] for _ in range(30)]
    assert len(set(seen)) == 30


def test_port_in_use_is_passed_over(registry):
    session = session_with(registry)
    first = lease(session, ("web",), registry.lease)["web"]
    registry.leased.clear()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", first))
        stranger.listen()
        assert lease(session, ("web",), registry.lease)["web"] != first


def test_port_is_held_while_the_lease_is_written(registry):
    def commit(found):
        for port in found.values():
            assert sockets.find_hold(port) is None
        return found

    found = lease(session_with(registry), ("web", "db"), commit)
    for port in found.values():
        holder = sockets.find_hold(port)
        assert holder is not None
        holder.close()


def test_lost_race_is_run_again(registry):
    registry.refusals = 3
    assert lease(session_with(registry), ("web",), registry.lease)
    assert registry.refusals == 0


def test_failed_commit_lets_the_ports_go(registry):
    seen = {}

    def commit(found):
        seen.update(found)
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        lease(session_with(registry), ("web",), commit)
    holder = sockets.find_hold(seen["web"])
    assert holder is not None
    holder.close()


def test_homes_start_at_different_places():
    starts = set()
    for number in range(8):
        registry = Registry()
        session = session_with(registry, f"/home/{number}")
        starts.add(lease(session, ("web",), registry.lease)["web"])
    assert len(starts) > 1


def test_first_name_has_the_lowest_port_also_at_the_end_of_the_range(registry, monkeypatch):
    monkeypatch.setattr(ports, "_candidates", lambda _: iter([29_998, 29_999, 20_000, 20_001]))
    found = lease(session_with(registry), ("web", "db", "job"), registry.lease)
    assert list(found) == ["web", "db", "job"]
    assert list(found.values()) == sorted(found.values())


def test_full_range_is_reported(monkeypatch):
    registry = Registry(*range(ports.FIRST, ports.LAST + 1))
    with pytest.raises(PrerequisiteError) as caught:
        lease(session_with(registry), ("web",), registry.lease)
    assert caught.value.exit_code == 3


def test_range_lies_below_the_kernels_own():
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as stream:
        assert int(stream.read().split()[0]) > ports.LAST


def test_threads_never_share_a_port(registry):
    session = session_with(registry)
    found = []

    def lease_two():
        found.extend(lease(session, ("web", "db"), registry.lease).values())

    threads = [threading.Thread(target=lease_two) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 24


def test_variables():
    ports_by_name = {"web": 20_001, "my-db": 20_002}
    assert ports.variables(ports_by_name, {"my-db": "http://my-db.x"}) == {
        "PORT": "20001",
        "ATOLL_PORT_WEB": "20001",
        "ATOLL_PORT_MY_DB": "20002",
        "ATOLL_URL_MY_DB": "http://my-db.x",
    }
    assert ports.variables({}, {}) == {}


def test_several_capsules_are_leased_at_once(registry):
    wanted = [("web", "db"), ("web",), ("web", "db")]
    found = ports.lease_with_ports(
        session_with(registry), wanted, lambda all_of_them: [registry.lease(f) for f in all_of_them]
    )
    assert [tuple(names) for names in found] == wanted
    assert len({port for names in found for port in names.values()}) == 5  # type: ignore[attr-defined]


# More ports for a capsule that exists, in a real store.


@pytest.fixture
def world(tmp_path):
    (tmp_path / "locks").mkdir()
    made = World(tmp_path)
    yield made
    made.session.store.close()


def known(world, capsule):
    return world.session.store.find_capsule(capsule.project_id, capsule.name)


def test_more_ports_keep_what_they_have(world):
    fix = world.capsule(world.project(), "fix", web=3000)
    ports.lease_more(world.session, fix, {"8123": 8123})
    port = known(world, fix).ports["8123"]
    assert ports.FIRST <= port <= ports.LAST
    ports.lease_more(world.session, fix, {"8123": 8123, "8124": 8124})
    after = known(world, fix)
    assert list(after.ports) == ["web", "8123", "8124"]
    assert after.ports["8123"] == port
    assert after.numbers == {"web": 3000, "8123": 8123, "8124": 8124}


def test_ports_are_given_up_and_leased_at_once(world):
    fix = world.capsule(world.project(), "fix", web=3000)
    ports.lease_more(world.session, fix, {"1": 1, "2": 2})
    ports.lease_more(world.session, fix, {"3": 3}, ["1", "2"])
    assert list(known(world, fix).ports) == ["web", "3"]


def test_more_ports_are_leased_to_no_other_capsule(world):
    project = world.project()
    capsules = [world.capsule(project, name) for name in ("one", "two", "three")]

    def lease_some(capsule):
        for number in range(1, 9):
            ports.lease_more(world.session, capsule, {str(number): number})

    threads = [threading.Thread(target=lease_some, args=[c]) for c in capsules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.session.store.leased_ports()) == 24


def test_more_ports_of_a_capsule_that_is_gone(world):
    fix = world.capsule(world.project(), "fix")
    world.session.store.forget_capsule(fix)
    with pytest.raises(StateError, match="has been removed"):
        ports.lease_more(world.session, fix, {"8123": 8123})
    assert world.session.store.leased_ports() == set()


def test_ports_inside(world):
    project = world.project()
    port = free_port()
    world.session.owner = {"ATOLL_ROUTER_PORT": str(port)}
    own = world.capsule(project, "own", web=3000, db=5432)
    ports.lease_more(world.session, own, {"8123": 8123})
    own = world.session.store.find_capsule(project.id, "own")
    assert ports.variables_of(world.session, own) == {
        "PORT": "3000",
        "ATOLL_PORT_WEB": "3000",
        "ATOLL_PORT_DB": "5432",
        "ATOLL_URL_WEB": f"http://web.own--shop.localhost:{port}",
        "ATOLL_URL_DB": f"http://db.own--shop.localhost:{port}",
    }
    bare = world.capsule(project, "bare")
    assert ports.variables_of(world.session, bare) == {"PORT": "3000"}
    shared = world.capsule(project, "shared", level="worktree", web=3000)
    assert ports.variables_of(world.session, shared)["PORT"] == str(shared.ports["web"])
