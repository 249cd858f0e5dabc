from __future__ import annotations

import asyncio
import resource
import socket

import pytest

from atoll.daemon.ports import port_leases
from atoll.daemon.ports.publisher import Publisher
from atoll.host import listening_sockets, sockets
from atoll.host.listening_sockets import Listening
from atoll.keeper.networks import OWN_PORTS
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.plan import Removal
from atoll.model.state import CheckoutRecord
from present import present
from worlds import Played, World, ask, free_port, until


async def attach(world, publisher, capsule, **servers):
    """Each server answers with the capsule's name, on the port inside that is given."""
    inside = Played(capsule)
    for name, port in servers.items():
        inside.doors[port] = await world.serve(f"{capsule.name} {name}")
    await publisher.update(inside, inside.found())
    return inside


async def row(publisher, capsule, name):
    told = await publisher.status(capsule.project_id, capsule.id)
    return next(row for row in told["ports"] if row["name"] == name)


def test_what_listens_is_reached_on_its_lease_only_while_it_listens(play):
    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=3000)
        lease = fix.ports["web"]
        assert await ask(lease) is None
        inside = await attach(world, publisher, fix, web=3000)
        assert await ask(lease) == "fix web"
        assert (await row(publisher, fix, "web")) == {
            "capsule": "fix", "name": "web", "inside": 3000, "dynamic": lease, "canonical": None,
            "url": f"http://web.fix--shop.localhost:{publisher.router_port}", "state": "listening",
        }  # fmt: skip
        await publisher.update(inside, set())
        assert await ask(lease) is None
        assert (await row(publisher, fix, "web"))["state"] == "closed"
        await publisher.update(inside, inside.found())
        assert await ask(lease) == "fix web"
        await publisher.forget(fix.id)
        assert await ask(lease) is None

    play(story)


def test_only_loopback_listens(play):
    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=3000)
        await attach(world, publisher, fix, web=3000)
        await publisher.checkout(fix.project_id, fix.id)
        outside = [
            place.address for place in publishing_places(fix.ports["web"], 3000)
            if place.address not in ("127.0.0.1", "::1")
        ]  # fmt: skip
        assert outside == []

    play(story)


def publishing_places(*ports):
    return [place for place in listening_sockets.own_listeners() if place.port in ports]


def test_undeclared_port_gets_a_lease_that_lasts(play):
    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix")
        await attach(world, publisher, fix, x=8123)
        lease = (await row(publisher, fix, "8123"))["dynamic"]
        assert await ask(lease) == "fix x"
        await publisher.close()
        again = Publisher(world.session)
        await attach(world, again, fix, y=8123)
        assert (await row(again, fix, "8123"))["dynamic"] == lease
        assert await ask(lease) == "fix y"
        await again.close()

    play(story)


def test_port_is_named_by_the_service_that_declares_it_now(play, tmp_path):
    (tmp_path / "atoll.toml").write_text('[services.api]\ncommand = "x"\nport = 4000\n')

    async def story(world, publisher):
        fix = world.capsule(world.project(root=str(tmp_path)), "fix")
        await attach(world, publisher, fix, x=4000, y=4001)
        told = await publisher.status(fix.project_id)
        assert [r["name"] for r in told["ports"]] == ["api", "4001"]

    play(story)


def test_broken_project_file_names_nothing(play, tmp_path):
    (tmp_path / "atoll.toml").write_text("[services\n")

    async def story(world, publisher):
        fix = world.capsule(world.project(root=str(tmp_path)), "fix")
        await attach(world, publisher, fix, x=4000)
        assert (await row(publisher, fix, "4000"))["state"] == "listening"

    play(story)


def test_two_capsules_on_the_same_port(play):
    async def story(world, publisher):
        project = world.project()
        one, two = (world.capsule(project, name, web=3000) for name in ("one", "two"))
        for capsule in (one, two):
            await attach(world, publisher, capsule, web=3000)
        assert [await ask(c.ports["web"]) for c in (one, two)] == ["one web", "two web"]

    play(story)


def test_own_and_granted_ports_are_not_published(play):
    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix")
        inside = Played(fix)
        found = {Listening("127.0.0.1", port) for port in (*OWN_PORTS, 5432)}
        await publisher.update(inside, found, granted={5432})
        assert (await publisher.status(fix.project_id))["ports"] == []

    play(story)


def test_stranger_on_a_lease_is_reported_and_waited_for(play):
    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=3000)
        with socket.create_server(("127.0.0.1", fix.ports["web"])):
            inside = await attach(world, publisher, fix, web=3000)
            state = (await row(publisher, fix, "web"))["state"]
            assert f"port {fix.ports['web']} is" in state
            assert (await row(publisher, fix, "web"))["dynamic"] == fix.ports["web"]
        await publisher.update(inside, inside.found())
        assert await ask(fix.ports["web"]) == "fix web"

    play(story)


def test_flood_of_ports_leaves_the_leases_of_others(play, monkeypatch):
    monkeypatch.setattr(port_leases, "MAX_PORTS", 3)

    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=3000)
        inside = Played(fix)
        await publisher.update(inside, {Listening("127.0.0.1", port) for port in range(4000, 4010)})
        told = (await publisher.status(fix.project_id))["ports"]
        assert len([r for r in told if r["dynamic"]]) == 3
        assert len([r for r in told if "too many" in r["state"]]) == 8
        # What has ended makes room after a while, what was declared stays.
        for _ in range(2):
            await publisher.update(inside, {Listening("127.0.0.1", 5000)})
            world.now += port_leases.RECYCLE_AFTER_S
        await publisher.update(inside, {Listening("127.0.0.1", 5000)})
        names = {r["name"] for r in (await publisher.status(fix.project_id))["ports"]}
        assert {"web", "5000"} <= names
        assert len(world.session.store.leased_ports()) == 3

    play(story)


def test_checkout_moves_without_a_gap(play):
    """Requests go on all the time: none fails, and old connections stay where they were."""

    async def story(world, publisher):
        project = world.project()
        port = free_port()
        one, two = (world.capsule(project, name, web=port) for name in ("one", "two"))
        for capsule in (one, two):
            await attach(world, publisher, capsule, web=port)
        told = await publisher.checkout(project.id, one.id)
        assert (told["checked_out"], told["ports"][0]["canonical"]) == ("one", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read(100) == b"one web"
        answers, stop = [], asyncio.Event()

        async def load():
            while not stop.is_set():
                answers.append(await ask(port))

        loads = [asyncio.create_task(load()) for _ in range(4)]
        for capsule in (two, one, two, one, two):
            await publisher.checkout(project.id, capsule.id)
            count = len(answers)
            await until(lambda count=count: len(answers) > count + 20)
        stop.set()
        await asyncio.gather(*loads)
        assert set(answers) == {"one web", "two web"}
        writer.write(b"still here")
        assert await reader.read(100) == b"still here"
        writer.close()
        assert await ask(port) == "two web"
        assert await ask(port, "::1") in ("two web", None)
        await publisher.checkout(project.id, None)
        assert await ask(port) is None

    play(story)


def test_checkout_takes_all_or_none(play):
    async def story(world, publisher):
        project = world.project()
        first, second = free_port(), free_port()
        one = world.capsule(project, "one", web=first)
        two = world.capsule(project, "two", web=first, db=second)
        await attach(world, publisher, one, web=first)
        await attach(world, publisher, two, web=first, db=second)
        await publisher.checkout(project.id, one.id)
        with socket.create_server(("127.0.0.1", second)):
            with pytest.raises(StateError) as caught:
                await publisher.checkout(project.id, two.id)
            assert f"port {second} is" in caught.value.message
            assert "nothing was changed" in caught.value.message
            assert "atoll checkout two" in str(caught.value.hint)
            assert await ask(first) == "one web"
            assert world.session.store.checkouts() == {project.id: CheckoutRecord(one.id)}
        await publisher.checkout(project.id, two.id)
        assert [await ask(first), await ask(second)] == ["two web", "two db"]

    play(story)


def test_stranger_on_a_canonical_port_is_named(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        one = world.capsule(project, "one", web=port)
        program = (
            f"import socket; s = socket.create_server(('127.0.0.1', {port})); "
            "print('up', flush=True); s.accept()"
        )
        stranger = await asyncio.create_subprocess_exec(
            "python3", "-c", program, stdout=asyncio.subprocess.PIPE
        )
        try:
            await present(stranger.stdout).readline()
            with pytest.raises(StateError) as caught:
                await publisher.checkout(project.id, one.id)
        finally:
            stranger.kill()
            await stranger.wait()
            stranger._transport.close()  # type: ignore[attr-defined]
        for text in (f"port {port}", f"process {stranger.pid}", "python3"):
            assert text in caught.value.message
        assert f"kill {stranger.pid}" in str(caught.value.hint)

    play(story)


def test_another_projects_checkout_is_named(play):
    async def story(world, publisher):
        port = free_port()
        shop, blog = world.project("shop"), world.project("blog", number=2, root="/blog")
        one, two = world.capsule(shop, "one", web=port), world.capsule(blog, "two", web=port)
        await publisher.checkout(shop.id, one.id)
        with pytest.raises(StateError, match="`one`") as caught:
            await publisher.checkout(blog.id, two.id)
        assert "atoll checkout --none --project '/r'" in str(caught.value.hint)

    play(story)


def test_checkout_comes_back_after_a_crash_and_goes_with_its_capsule(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        fix = world.capsule(project, "fix", web=port)
        await attach(world, publisher, fix, web=port)
        await publisher.checkout(project.id, fix.id)
        await publisher.close()  # the kernel does as much for one that is killed
        assert await ask(port) is None
        again = Publisher(world.session)
        with socket.create_server(("127.0.0.1", port)):
            await again.sync()
            assert len((await again.status(project.id))["missing"]) == 1
        await attach(world, again, fix, web=port)
        await again.sync()
        assert await ask(port) == "fix web"
        world.session.store.set_removing(fix, Removal(point="p", keep_branch=False))
        await again.sync()
        assert await ask(port) is None
        world.session.store.forget_capsule(fix)
        await again.sync()
        assert await ask(fix.ports["web"]) is None
        await again.close()

    play(story)


def test_level_that_shares_the_hosts_network(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        fix = world.capsule(project, "fix", level="worktree", web=port)
        await world.serve("fix itself", fix.ports["web"])
        await publisher.checkout(project.id, fix.id)
        assert await ask(port) == "fix itself"
        told = await row(publisher, fix, "web")
        assert (told["inside"], told["canonical"]) == (fix.ports["web"], port)
        assert told["state"] == "listening"
        assert publisher.find_route(("web", "fix--shop")).target.port == fix.ports["web"]

    play(story)


def test_low_port_of_an_ordinary_user_is_reported_with_its_fix(ordinary_user, open_place):
    # Found here: the user cannot look into the interpreter's own directory.
    "".encode("ascii")

    def story():
        async def run():
            (open_place / "locks").mkdir()
            world = World(open_place)
            publisher = Publisher(world.session)
            project = world.project()
            fix = world.capsule(project, "fix", web=1)
            with pytest.raises(PrerequisiteError) as caught:
                await publisher.checkout(project.id, fix.id, [1])
            assert "ip_unprivileged_port_start=1" in str(caught.value.hint)
            assert world.session.store.checkouts() == {}
            await world.close()

        asyncio.run(run())

    ordinary_user(story)


def test_unknown_things_are_refused(play):
    async def story(world, publisher):
        shop, blog = world.project("shop"), world.project("blog", number=2)
        other = world.capsule(blog, "other", web=3000)
        for project_id, capsule_id in [("nowhere", None), (shop.id, 99), (shop.id, other.id)]:
            with pytest.raises(StateError):
                await publisher.checkout(project_id, capsule_id)
        with pytest.raises(StateError):
            await publisher.status("nowhere")

    play(story)


def test_thousand_connections_at_once(play):
    async def story(world, publisher):
        sockets.allow_many()
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 8000:
            pytest.skip("too few descriptors are allowed here")
        fix = world.capsule(world.project(), "fix", web=3000)
        await attach(world, publisher, fix, web=3000)

        async def talk(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", fix.ports["web"])
            assert await reader.readexactly(7) == b"fix web"
            arrived.append(number)
            await everybody.wait()
            writer.write(b"%d" % number)
            writer.write_eof()
            said = await reader.read()
            writer.close()
            return int(said)

        arrived: list[object] = []
        everybody = asyncio.Event()
        tasks = [asyncio.create_task(talk(number)) for number in range(1000)]
        await until(lambda: len(arrived) == 1000, timeout_s=50)
        everybody.set()
        assert await asyncio.gather(*tasks) == list(range(1000))
        await until(lambda: len(publisher.connections) == 0)

    play(story)


def test_checkout_and_status(play):
    async def story(world, publisher):
        project = world.project()
        fix = world.capsule(project, "fix", web=free_port())
        assert not publisher.is_needed
        told = await publisher.checkout(project.id, fix.id, ())
        assert (told["checked_out"], publisher.is_needed) == ("fix", True)
        assert await publisher.status(project.id, fix.id) == told
        await publisher.checkout(project.id, None, ())
        assert not publisher.is_needed

    play(story)


def test_ports_that_have_ended_are_forgotten(play):
    """One test run of a project may open dozens; what is declared stays."""

    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=3000)
        inside = Played(fix)
        await publisher.update(inside, {Listening("127.0.0.1", port) for port in range(4000, 4009)})
        assert len(world.session.store.capsule(fix.id).ports) == 10
        await publisher.update(inside, set())
        rows = (await publisher.status(fix.project_id))["ports"]
        assert [(row["name"], row["state"]) for row in rows] == [("web", "closed")]
        # A server that restarts keeps its lease for a while.
        world.now += port_leases.FORGET_AFTER_S - 1
        await publisher.update(inside, set())
        assert len(world.session.store.capsule(fix.id).ports) == 10
        world.now += 2
        await publisher.update(inside, set())
        assert list(world.session.store.capsule(fix.id).ports) == ["web"]

    play(story)
