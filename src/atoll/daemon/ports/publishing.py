"""A capsule's ports on the host: dynamic ones for its life, canonical ones while it is checked out.

Law: what listens inside is reached on 127.0.0.1 under the port that was leased for it, only while
it listens, and under no other. Which capsule is checked out is the store's word: whoever comes
after a crash takes the same ports again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from atoll.daemon.ports import census, telling
from atoll.daemon.ports.attached import Attached
from atoll.daemon.ports.census import Census, declared, has_own_network
from atoll.daemon.ports.checkouts import Checkouts, explain, is_passing, refusal
from atoll.daemon.ports.doors import Door, Guests
from atoll.daemon.ports.targets import HOST, LOOPBACK, Inside, Target
from atoll.engine import config, ports, urls
from atoll.engine.session import Session
from atoll.host import sockets
from atoll.host.listening import Listening
from atoll.keeper.networks import OWN_PORTS
from atoll.model.errors import AtollError, SpecError, StateError
from atoll.model.state import Capsule

MOST_PORTS = 64
"""Of one capsule: whoever listens on thousands must not use up the leases of all others."""
_LOOK_S = 1.0


Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Route(NamedTuple):
    """What a host name stands for."""

    capsule: Capsule
    name: str
    target: Target


class Publisher:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.router_port = urls.router_port(session)
        self.router_trouble: OSError | None = None
        """Set by the router when it cannot have its port."""
        self.census = Census()
        self.attached: dict[int, Attached] = {}
        self.guests = Guests()
        self.checkouts = Checkouts(self.guests)
        self._turn = asyncio.Lock()
        self._files: dict[str, tuple[object, dict[str, int]]] = {}

    async def serve(self) -> None:
        """Keeps canonical ports as the store says, until cancelled; then closes everything."""
        sockets.allow_many()
        try:
            while True:
                await self.look()
                await asyncio.sleep(_LOOK_S)
        finally:
            await self.close()

    async def close(self) -> None:
        for one in self.attached.values():
            for door in one.doors.values():
                door.close()
        self.attached.clear()
        self.checkouts.close()
        await self.guests.close()

    async def look(self) -> None:
        """Reads the store again, and follows what others have changed there."""
        async with self._turn:
            await self._refresh()
            for capsule_id in set(self.attached) - set(self.census.capsules):
                self._detach(capsule_id)
            chosen = self.census.checkouts.items()
            living = {project for project, capsule in chosen if capsule in self.census.capsules}
            for project_id in self.checkouts.projects() - living:
                self.checkouts.release(project_id)
            for project_id in living:
                self._tend(project_id)

    async def update(
        self, inside: Inside, found: Collection[Listening], granted: Collection[int] = ()
    ) -> None:
        """What listens in the capsule now. Ports of the daemon's own (`granted`) do not count."""
        async with self._turn:
            if inside.capsule.id not in self.census.capsules:
                await self._refresh()
            capsule = self.census.capsules.get(inside.capsule.id)
            if capsule is None or not has_own_network(capsule):
                return
            one = self.attached.setdefault(capsule.id, Attached(inside))
            own = {*OWN_PORTS, *granted}
            places = frozenset(place for place in found if place.port not in own)
            if one.inside is inside and one.found == places and not one.troubles:
                return
            one.inside, one.found = inside, places
            with suppress(StateError):
                # It is being removed: its ports go with it.
                await self._lease(one, capsule)
            self._open_doors(one)
            self._tend(capsule.project_id)

    async def forget(self, capsule_id: int) -> None:
        """The capsule's network is gone."""
        async with self._turn:
            self._detach(capsule_id)

    async def checkout(self, project_id: str, capsule_id: int | None) -> dict[str, Any]:
        """Gives the project's canonical ports to a capsule, all or none; None: to nobody.

        Raises StateError or PrerequisiteError; then nothing has changed.
        """
        async with self._turn:
            await self._refresh()
            if project_id not in self.census.projects:
                raise StateError("there is no such project", hint="atoll ls")
            capsule = None if capsule_id is None else self.census.capsules.get(capsule_id)
            if capsule_id is not None and (capsule is None or capsule.project_id != project_id):
                raise StateError("there is no such capsule", hint="atoll ls")
            wanted = self.canonical(capsule) if capsule is not None else {}
            opened, failures = self.checkouts.open_missing(project_id, wanted)
            try:
                if capsule is not None:
                    await self._require_all(capsule, failures)
                await asyncio.to_thread(self.session.store.set_checkout, project_id, capsule_id)
            except BaseException:
                for door in opened:
                    door.close()
                raise
            self.checkouts.settle(project_id, wanted, opened, failures)
            if capsule is None:
                self.checkouts.release(project_id)
            await self._refresh()
        return await self.status(project_id, capsule_id)

    async def status(self, project_id: str, capsule_id: int | None = None) -> dict[str, Any]:
        """Every port of the project's capsules, or of one, as it is now."""
        if project_id not in self.census.projects or (
            capsule_id is not None and capsule_id not in self.census.capsules
        ):
            await self.look()
        picture = telling.Picture(
            census=self.census,
            attached=dict(self.attached),
            checkouts=self.checkouts,
            router_port=self.router_port,
            router_trouble=self.router_trouble,
        )
        return await asyncio.to_thread(telling.project_shape, picture, project_id, capsule_id)

    @property
    def is_needed(self) -> bool:
        """Whether somebody would miss it."""
        return bool(self.attached or self.census.checkouts or len(self.guests))

    def handlers(self) -> dict[str, Handler]:
        """What can be asked, each by `do`: `{"project": ID, "capsule": ID or None}`."""

        async def look(request: dict[str, Any]) -> dict[str, Any]:
            return await self.status(str(request["project"]), request["capsule"])

        async def checkout(request: dict[str, Any]) -> dict[str, Any]:
            return await self.checkout(str(request["project"]), request["capsule"])

        return {"ports": look, "checkout": checkout}

    def canonical(self, capsule: Capsule) -> dict[int, Target]:
        """The ports that are its due when it is checked out, and where each leads to.

        What is declared always; what is not, while it listens.
        """
        if not has_own_network(capsule):
            return {
                number: Target(HOST, capsule.ports[name], LOOPBACK)
                for name, number in capsule.numbers.items()
            }
        one = self.attached.get(capsule.id)
        known = set(declared(capsule).values())
        if one is None:
            return {number: Target(None, number) for number in known}
        return {number: one.target(number) for number in known | one.listening}

    def find_route(self, labels: tuple[str, ...]) -> Route | None:
        """Where `(service or port, site)` or `(site,)` leads to."""
        if len(labels) not in (1, 2):
            return None
        *names, site = labels
        capsule = self.census.capsules.get(self.census.sites.get(site, -1))
        if capsule is None:
            return None
        targets = self.named_targets(capsule)
        if names:
            return self._find_named(capsule, targets, names[0])
        if urls.MAIN in targets:
            return Route(capsule, urls.MAIN, targets[urls.MAIN])
        open_ones = {n: t for n, t in targets.items() if t.addresses}
        if len(open_ones) != 1:
            return None
        return Route(capsule, *next(iter(open_ones.items())))

    def named_targets(self, capsule: Capsule) -> dict[str, Target]:
        """Every port of a capsule, by the name of its lease."""
        if not has_own_network(capsule):
            return {name: Target(HOST, port, LOOPBACK) for name, port in capsule.ports.items()}
        one = self.attached.get(capsule.id)
        return {
            name: one.target(number) if one is not None else Target(None, number)
            for name, number in capsule.numbers.items()
        }

    def _find_named(self, capsule: Capsule, targets: dict[str, Target], word: str) -> Route | None:
        if word in targets:
            return Route(capsule, word, targets[word])
        # A service can be asked for by its number, too.
        for name, number in capsule.numbers.items():
            if word == str(number):
                return Route(capsule, name, targets[name])
        return None

    async def _refresh(self) -> None:
        self.census = await asyncio.to_thread(census.take, self.session)
        with suppress(AtollError):
            # The owner may have said another one; a bad word of theirs changes nothing here.
            self.router_port = await asyncio.to_thread(urls.router_port, self.session)

    def _detach(self, capsule_id: int) -> None:
        one = self.attached.pop(capsule_id, None)
        if one is None:
            return
        for door in one.doors.values():
            door.close()
        capsule = self.census.capsules.get(capsule_id)
        if capsule is not None:
            self._tend(capsule.project_id)

    def _tend(self, project_id: str) -> None:
        capsule = self.census.capsules.get(self.census.checkouts.get(project_id, -1))
        if capsule is not None:
            self.checkouts.tend(project_id, self.canonical(capsule))

    async def _require_all(self, capsule: Capsule, failures: dict[int, OSError]) -> None:
        """Raises when a port is missing that somebody may count on."""
        known = set(declared(capsule).values())
        due = {port: error for port, error in failures.items()
               if port in known or not is_passing(port)}  # fmt: skip
        if not due:
            return
        reasons: dict[int, tuple[str, str]] = {}
        for port, error in due.items():
            reason = self._rival(port)
            if reason is None:
                reason = await asyncio.to_thread(explain, port, error)
            reasons[port] = reason
        is_root = all(error.errno == errno.EACCES for error in due.values())
        raise refusal(reasons, again=f"atoll checkout {capsule.name}", is_root=is_root)

    def _rival(self, port: int) -> tuple[str, str] | None:
        """Another project that has the port checked out."""
        owner = self.census.projects.get(self.checkouts.owner(port) or "")
        if owner is None:
            return None
        rival = self.census.capsules[self.census.checkouts[owner.id]]
        return (
            f"port {port} is checked out by `{rival.name}` of project `{owner.name}`",
            f"atoll checkout --none --project '{owner.root}'",
        )

    async def _lease(self, one: Attached, capsule: Capsule) -> None:
        """Sees that each port that listens has a lease, as far as there may be leases."""
        unnamed = []
        for number in sorted(one.listening - set(capsule.numbers.values())):
            current = self.census.capsules.get(capsule.id, capsule)
            if len(current.ports) >= MOST_PORTS and not await self._recycle(one, current):
                unnamed.append(number)
                continue
            name = await self._name(capsule, number)
            await asyncio.to_thread(ports.lease_one, self.session, capsule, name, number)
            await self._refresh()
        one.unnamed = frozenset(unnamed)

    async def _recycle(self, one: Attached, capsule: Capsule) -> bool:
        """Gives up a lease that nobody declared and nobody uses now, if there is one."""
        idle = [
            (number, name) for name, number in capsule.numbers.items()
            if name.isdigit() and number not in one.listening
        ]  # fmt: skip
        if not idle:
            return False
        # The kernel's own picks are the highest, and the least likely to come again.
        _, name = max(idle)
        await asyncio.to_thread(self.session.store.release_port, capsule, name)
        await self._refresh()
        return True

    async def _name(self, capsule: Capsule, number: int) -> str:
        services = await asyncio.to_thread(self._services, capsule.project_id)
        taken = self.census.capsules[capsule.id].ports
        found = [name for name, port in services.items() if port == number and name not in taken]
        return found[0] if found else str(number)

    def _services(self, project_id: str) -> dict[str, int]:
        """The ports that the project file declares now; none when it cannot be read."""
        root = Path(self.census.projects[project_id].root)
        try:
            state = (root / config.FILE_NAME).stat()
        except OSError:
            return {}
        stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
        known = self._files.get(project_id)
        if known is None or known[0] != stamp:
            services: dict[str, int] = {}
            with suppress(SpecError, StateError):
                file = config.load_config(root, self.session.owner).file
                services = file.services if file is not None else {}
            self._files[project_id] = known = (stamp, services)
        return known[1]

    def _open_doors(self, one: Attached) -> None:
        capsule = self.census.capsules.get(one.inside.capsule.id)
        if capsule is None:
            return
        one.troubles = {}
        open_now = {n: p for n, p in capsule.numbers.items() if p in one.listening}
        for name in set(one.doors) - set(open_now):
            one.doors.pop(name).close()
        for name, number in open_now.items():
            if name in one.doors:
                one.doors[name].target = one.target(number)
                continue
            try:
                one.doors[name] = Door(capsule.ports[name], one.target(number), self.guests)
            except OSError as error:
                one.troubles[name] = error
