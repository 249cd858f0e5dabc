"""A capsule's ports on the host: dynamic ones for its life, canonical ones while it is checked out.

Law: what listens inside is reached on 127.0.0.1 under the port that was leased for it, only while
it listens, and under no other. Only what is declared, or named by the owner, is canonical. Which
capsule is checked out is in the store: after a crash the same ports are opened again.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple, NoReturn

from atoll.daemon.ports import port_report
from atoll.daemon.ports.checkout_ports import (
    Checkouts,
    command,
    explain,
    refusal,
    require_named,
    select,
)
from atoll.daemon.ports.host_listeners import PortConnections, PortForward
from atoll.daemon.ports.port_leases import PortLeases
from atoll.daemon.ports.published_capsule import (
    PublishedCapsule,
    StoreCache,
    has_own_network,
    read_store,
)
from atoll.daemon.ports.targets import HOST, LOOPBACK, Inside, Target
from atoll.daemon.resource_errors import TRANSIENT_ERRORS, TransientErrorLog
from atoll.engine.network import urls
from atoll.engine.state.session import Session
from atoll.host import sockets
from atoll.host.listening_sockets import Listening
from atoll.keeper.networks import OWN_PORTS
from atoll.model.errors import AtollError, StateError
from atoll.model.shapes import ProjectPortsShape
from atoll.model.state import CapsuleRecord

_SYNC_S = 1.0


class Route(NamedTuple):
    """The target of a host name."""

    capsule: CapsuleRecord
    name: str
    target: Target


class Publisher:
    def __init__(self, session: Session, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.session = session
        self.router_port = urls.router_port(session)
        self.router_trouble: OSError | None = None
        """Set by the router when it cannot bind its port."""
        self.cache = StoreCache()
        self.attached: dict[int, PublishedCapsule] = {}
        self.connections = PortConnections()
        self.checkouts = Checkouts(self.connections)
        self._stamp: tuple[object, ...] | None = None
        self._turn = asyncio.Lock()
        self._leases = PortLeases(session, clock)
        self._error_log = TransientErrorLog("reading the store")

    async def serve(self) -> None:
        """Publishes canonical ports according to the store, until cancelled; then closes
        everything.
        """
        sockets.allow_many()
        try:
            while True:
                await self.sync()
                await asyncio.sleep(_SYNC_S)
        finally:
            await self.close()

    async def close(self) -> None:
        for one in self.attached.values():
            for forward in one.forwards.values():
                forward.close()
        self.attached.clear()
        self.checkouts.close()
        await self.connections.close()

    async def sync(self) -> None:
        """Reads the store again, and applies changes made by other processes."""
        async with self._turn:
            await self._refresh()
            for capsule_id in set(self.attached) - set(self.cache.capsules):
                self._detach(capsule_id)
            living = {key for key in self.cache.checkouts if self.cache.checked_out(key)}
            for project_id in self.checkouts.projects() - living:
                self.checkouts.release(project_id)
            for project_id in living:
                self._tend(project_id)

    async def update(
        self,
        inside: Inside,
        found: Collection[Listening],
        granted: Collection[int] = (),
        *,
        is_complete: bool = True,
    ) -> None:
        """Publishes what listens in the capsule now, except the daemon's own ports (`granted`).

        The lock is not held while leases are written: a capsule for which that takes long delays
        no other one.
        """
        if inside.capsule.id not in self.cache.capsules:
            async with self._turn:
                await self._refresh()
        capsule = self.cache.capsules.get(inside.capsule.id)
        if capsule is None or not has_own_network(capsule):
            return
        one = self.attached.setdefault(capsule.id, PublishedCapsule(inside))
        own = {*OWN_PORTS, *granted}
        places = frozenset(place for place in found if place.port not in own)
        has_changed = one.see(inside, places, is_complete=is_complete)
        is_forgettable = self._leases.has_forgettable(one)
        if not (has_changed or one.troubles or one.unpublished or is_forgettable):
            return
        project = self.cache.projects[capsule.project_id]
        fresh = capsule
        with suppress(AtollError):
            # The capsule is being removed, or no port is free: what has a lease stays published.
            fresh = await self._leases.update(one, capsule, project)
        async with self._turn:
            if self.attached.get(capsule.id) is not one or fresh.id not in self.cache.capsules:
                return
            if fresh is not capsule:
                self.cache = self.cache.with_capsule(fresh)
            self._open_forwards(one)
            self._tend(capsule.project_id)

    def is_unfinished(self, capsule_id: int) -> bool:
        """Whether the next `update` has something to do, also with the same listing: a port waits
        for its lease, or a lease for its end.
        """
        one = self.attached.get(capsule_id)
        if one is None:
            return False
        return bool(one.unpublished or one.troubles) or self._leases.has_forgettable(one)

    async def forget(self, capsule_id: int) -> None:
        """The capsule's network is gone."""
        async with self._turn:
            self._detach(capsule_id)

    async def checkout(
        self, project_id: str, capsule_id: int | None, named: Collection[int] = ()
    ) -> ProjectPortsShape:
        """Gives the project's canonical ports to a capsule, all or none; None: to no capsule.

        `named` are ports that the owner named in addition to the declared ones. Raises StateError
        or PrerequisiteError; then nothing has changed.
        """
        async with self._turn:
            await self._refresh()
            capsule = self._require_capsule(project_id, capsule_id)
            wanted: dict[int, Target] = {}
            if capsule is not None:
                selection = select(self.cache, capsule, named, self.router_port)
                require_named(selection, capsule, named)
                wanted = self.canonical(capsule, selection.taken)
            opened, failures = self.checkouts.open_missing(project_id, wanted)
            try:
                if capsule is not None and failures:
                    await self._refuse(capsule, failures, named)
                await asyncio.to_thread(
                    self.session.store.set_checkout, project_id, capsule_id, named
                )
            except BaseException:
                for forward in opened:
                    forward.close()
                raise
            self.checkouts.settle(project_id, wanted, opened, failures)
            if capsule is None:
                self.checkouts.release(project_id)
            await self._refresh()
        return await self.status(project_id, capsule_id)

    def _require_capsule(self, project_id: str, capsule_id: int | None) -> CapsuleRecord | None:
        if project_id not in self.cache.projects:
            raise StateError("there is no such project", hint="atoll ls")
        capsule = None if capsule_id is None else self.cache.capsules.get(capsule_id)
        if capsule_id is not None and (capsule is None or capsule.project_id != project_id):
            raise StateError("there is no such capsule", hint="atoll ls")
        return capsule

    async def status(self, project_id: str, capsule_id: int | None = None) -> ProjectPortsShape:
        """Every port of the project's capsules, or of one, as it is now."""
        if project_id not in self.cache.projects or (
            capsule_id is not None and capsule_id not in self.cache.capsules
        ):
            await self.sync()
        picture = port_report.ReportInput(
            cache=self.cache,
            attached=dict(self.attached),
            checkouts=self.checkouts,
            router_port=self.router_port,
            router_trouble=self.router_trouble,
        )
        return await asyncio.to_thread(port_report.project_shape, picture, project_id, capsule_id)

    @property
    def is_needed(self) -> bool:
        """Whether it has ports, checkouts or connections to serve."""
        return bool(self.attached or self.cache.checkouts or len(self.connections))

    def canonical(self, capsule: CapsuleRecord, taken: Collection[int]) -> dict[int, Target]:
        """The target of each of these canonical ports, whether it listens or not."""
        if not has_own_network(capsule):
            leased = {number: capsule.ports[name] for name, number in capsule.numbers.items()}
            return {n: Target(HOST, leased[n], LOOPBACK, capsule.id) for n in taken}
        one = self.attached.get(capsule.id)
        if one is None:
            return {number: Target(None, number, (), capsule.id) for number in taken}
        return {number: one.target(number) for number in taken}

    def find_route(self, labels: tuple[str, ...]) -> Route | None:
        """The target of `(service or port, site)` or `(site,)`."""
        if len(labels) not in (1, 2):
            return None
        *names, site = labels
        capsule = self.cache.capsules.get(self.cache.sites.get(site, -1))
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

    def named_targets(self, capsule: CapsuleRecord) -> dict[str, Target]:
        """Every port of a capsule, by the name of its lease."""
        if not has_own_network(capsule):
            return {
                name: Target(HOST, port, LOOPBACK, capsule.id)
                for name, port in capsule.ports.items()
            }
        one = self.attached.get(capsule.id)
        return {
            name: one.target(number) if one is not None else Target(None, number, (), capsule.id)
            for name, number in capsule.numbers.items()
        }

    def _find_named(
        self, capsule: CapsuleRecord, targets: dict[str, Target], word: str
    ) -> Route | None:
        if word in targets:
            return Route(capsule, word, targets[word])
        # A service can be asked for by its number, too.
        for name, number in capsule.numbers.items():
            if word == str(number):
                return Route(capsule, name, targets[name])
        return None

    async def _refresh(self) -> None:
        """What cannot be read now stays as it was last."""
        try:
            # Before the reading: what is written meanwhile is read the next time.
            stamp = await asyncio.to_thread(self.session.store.stamp)
            if stamp != self._stamp:
                self.cache = await asyncio.to_thread(read_store, self.session)
                self._stamp = stamp
            with suppress(AtollError):
                # The owner may have chosen another one; an invalid value is ignored here.
                self.router_port = await asyncio.to_thread(urls.router_port, self.session)
        except TRANSIENT_ERRORS as error:
            self._error_log.note(error)
        else:
            self._error_log.clear()

    def _detach(self, capsule_id: int) -> None:
        one = self.attached.pop(capsule_id, None)
        if one is None:
            return
        for forward in one.forwards.values():
            forward.close()
        capsule = self.cache.capsules.get(capsule_id)
        if capsule is not None:
            self._tend(capsule.project_id)

    def _tend(self, project_id: str) -> None:
        capsule = self.cache.checked_out(project_id)
        if capsule is not None:
            named = self.cache.checkouts[project_id].ports
            selection = select(self.cache, capsule, named, self.router_port)
            self.checkouts.tend(project_id, self.canonical(capsule, selection.taken))

    async def _refuse(
        self, capsule: CapsuleRecord, failures: dict[int, OSError], named: Collection[int]
    ) -> NoReturn:
        reasons: dict[int, tuple[str, str]] = {}
        for port, error in failures.items():
            reason = self._rival(port)
            if reason is None:
                reason = await asyncio.to_thread(explain, port, error)
            reasons[port] = reason
        is_root = all(error.errno == errno.EACCES for error in failures.values())
        raise refusal(reasons, again=command(capsule, named), is_root=is_root)

    def _rival(self, port: int) -> tuple[str, str] | None:
        """Another project that has the port checked out."""
        owner = self.cache.projects.get(self.checkouts.owner(port) or "")
        if owner is None:
            return None
        rival = self.cache.capsules[self.cache.checkouts[owner.id].capsule_id]
        return (
            f"port {port} is checked out by `{rival.name}` of project `{owner.name}`",
            f"atoll checkout --none --project '{owner.root}'",
        )

    def _open_forwards(self, one: PublishedCapsule) -> None:
        capsule = self.cache.capsules.get(one.inside.capsule.id)
        if capsule is None:
            return
        one.troubles = {}
        open_now = {n: p for n, p in capsule.numbers.items() if one.is_reachable(p)}
        for name in set(one.forwards) - set(open_now):
            one.forwards.pop(name).close()
        for name, number in open_now.items():
            if name in one.forwards:
                one.forwards[name].target = one.target(number)
                continue
            try:
                one.forwards[name] = PortForward(
                    capsule.ports[name], one.target(number), self.connections
                )
            except OSError as error:
                one.troubles[name] = error
