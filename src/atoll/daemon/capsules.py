"""The capsules that live and have a network of their own: their ways out, and their ports."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from atoll.daemon.control import Handler
from atoll.daemon.egress.granting import Grant
from atoll.daemon.egress.journal import Journal
from atoll.daemon.egress.leaving import Doors, Egress
from atoll.daemon.egress.reserved import borrow_doors
from atoll.daemon.egress.shares import Share
from atoll.daemon.egress.world import World
from atoll.daemon.fair_loop import LoopShare, enter_share
from atoll.daemon.holders import DATAGRAM, STREAM, V4, V6, Holder, HolderGone, HolderSilent
from atoll.daemon.ports.publishing import Publisher
from atoll.daemon.setbacks import SETBACKS, Setbacks
from atoll.engine import networks, policies
from atoll.engine.leases import isolation_plan
from atoll.engine.session import Session
from atoll.keeper.networks import CAUGHT_PORT, NAMES_PORT, PROXY_PORT
from atoll.model.errors import StateError
from atoll.model.state import Capsule

_BACKLOG = 1024
_GRANT = "host:"
_LOOK_S = 0.4
_FIND_S = 2.0
"""How long a start waits for holders, and when one that did not answer is asked again."""
_LOOPBACK = {V4: "127.0.0.1", V6: "::1"}
_IPV6 = "/proc/net/if_inet6"

Serving = Coroutine[Any, Any, None]


class Attached:
    """One of them."""

    def __init__(self, session: Session, capsule: Capsule, holder: Holder, world: World) -> None:
        self._session = session
        self.capsule = capsule
        self.holder = holder
        self._world = world
        self.share = LoopShare()
        """Of the loop: what is done for this capsule delays no other."""
        self.journal = Journal(Path(capsule.directory))
        self._egress_share = Share()
        self._policy = partial(policies.policy_of, session, capsule.id)
        self._served: dict[str, asyncio.Task[None]] = {}
        self.problems: dict[str, str] = {}
        """What could not be opened: mostly because somebody inside was there first."""
        self._families = (V4, V6) if os.path.exists(_IPV6) else (V4,)

    async def open(self) -> None:
        """Opens what the policy asks for now and is not open yet, and closes what it does not."""
        plan = isolation_plan(self._session, self.capsule)
        wanted: dict[str, Callable[[], Awaitable[Serving]]] = {}
        if networks.has_own(plan):
            wanted["egress"] = self._open_egress
            for port in self._policy().host_ports():
                wanted[f"{_GRANT}{port}"] = partial(self._open_host_port, port)
        for key in [key for key in self._served if key not in wanted]:
            await _end(self._served.pop(key))
        for key, opening in wanted.items():
            if key in self._served and not self._served[key].done():
                continue
            try:
                self._served[key] = asyncio.create_task(await opening())
                self.problems.pop(key, None)
            except HolderGone:
                raise
            except OSError as error:
                self.problems[key] = error.strerror or str(error)

    async def _open_egress(self) -> Serving:
        with ExitStack() as opened:
            doors = await borrow_doors(self.capsule.directory, opened, backlog=_BACKLOG)
            doors = doors or Doors(
                proxy=(await self._listen(opened, PROXY_PORT, (V4,)))[0],
                caught=await self._listen(opened, CAUGHT_PORT, self._families),
                names=await self._listen(opened, NAMES_PORT, self._families, DATAGRAM),
                names_streams=await self._listen(opened, NAMES_PORT, self._families),
            )
            egress = Egress(
                capsule=self.capsule.name,
                policy=self._policy,
                journal=self.journal,
                world=self._world,
                share=self._egress_share,
                directory=Path(self.capsule.directory),
            )
            return _serve(self.share, egress.serve(doors), opened.pop_all())

    async def _open_host_port(self, port: int) -> Serving:
        grant = Grant(
            port,
            capsule=self.capsule.name,
            policy=self._policy,
            journal=self.journal,
            world=self._world,
            share=self._egress_share,
        )
        with ExitStack() as opened:
            listeners = await self._listen(opened, port, self._families)
            return _serve(self.share, grant.serve(listeners), opened.pop_all())

    async def _listen(
        self, opened: ExitStack, port: int, families: tuple[int, ...], kind: int = STREAM
    ) -> tuple[socket.socket, ...]:
        """Sockets on the capsule's own loopback. OSError when somebody inside has the port."""
        made = await self.holder.sockets(*((family, kind) for family in families))
        for sock in made:
            opened.enter_context(sock)
        for family, sock in zip(families, made, strict=True):
            if kind == STREAM:
                # For what lingers of a former listener. On datagram sockets it would let a process
                # inside bind the same port, and receive what is meant for this one.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == V6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((_LOOPBACK[family], port))
            if kind == STREAM:
                sock.listen(_BACKLOG)
        return tuple(made)

    @property
    def granted(self) -> list[int]:
        """Ports inside that lead to the host."""
        return [int(key.removeprefix(_GRANT)) for key in self._served if key.startswith(_GRANT)]

    async def dial(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """From here on the task that serves the connection belongs to the capsule's share: the
        router and checked-out ports accept for many capsules.
        """
        enter_share(self.share)
        return await self.holder.dial(port, address)

    async def close(self) -> None:
        for task in self._served.values():
            await _end(task)
        self.holder.close()
        self.journal.close()


class Capsules:
    """All of them. Leaving it closes every way out."""

    def __init__(self, session: Session, publisher: Publisher) -> None:
        self._session = session
        self._publisher = publisher
        self._world = World.of(os.environ)
        self._attached: dict[int, Attached] = {}
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per capsule: an answer that one holder owes is not waited for by the others."""
        self._finding: asyncio.Task[None] | None = None
        self._setbacks = Setbacks("looking for the capsules that run")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._finding is not None:
            await _end(self._finding)
        for capsule_id in list(self._attached):
            await self._detach(capsule_id)
        self._world.close()

    async def serve(self) -> None:
        """Looks, until cancelled, where something listens.

        Each capsule is looked at by a task of its own, and not again before that has ended: a slow
        look delays no other capsule.
        """
        looks: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                for capsule_id in [key for key, task in looks.items() if task.done()]:
                    self._judge(capsule_id, looks.pop(capsule_id))
                for capsule_id, attached in self._attached.items():
                    is_due = attached.holder.may_listen_anew()
                    is_due |= self._publisher.is_unfinished(capsule_id)
                    if capsule_id not in looks and is_due:
                        looks[capsule_id] = asyncio.create_task(self._look(attached))
                await asyncio.sleep(_LOOK_S)
        finally:
            for task in looks.values():
                await _end(task)

    def _judge(self, capsule_id: int, look: asyncio.Task[None]) -> None:
        """An error over one capsule is told, and stops no other. Raises StateError, which concerns
        the whole home.
        """
        error, attached = look.exception(), self._attached.get(capsule_id)
        if isinstance(error, StateError) and not isinstance(error, SETBACKS):
            raise error
        if attached is None:
            return
        if error is None:
            attached.problems.pop("ports", None)
            return
        problem = f"{type(error).__name__}: {error}"
        if attached.problems.get("ports") != problem:
            attached.problems["ports"] = problem
            told = {"message": f"ports of `{attached.capsule.name}`", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    async def _look(self, attached: Attached) -> None:
        # Doors that are opened in here belong to the capsule's share, and so do their connections.
        enter_share(attached.share)
        capsule_id = attached.capsule.id
        with suppress(HolderGone):
            found = await attached.holder.listening()
            if self._attached.get(capsule_id) is not attached:
                return
            await self._publisher.update(
                attached, found.places, granted=attached.granted, is_complete=found.is_complete
            )
            if self._attached.get(capsule_id) is not attached:
                # It was detached meanwhile.
                await self._publisher.forget(capsule_id)

    def handlers(self) -> dict[str, Handler]:
        return {
            "attach": self._on_attach,
            "policy": self._on_attach,
            "journal": self._on_journal,
        }

    @property
    def are_needed(self) -> bool:
        return bool(self._attached)

    def status(self) -> dict[str, object]:
        return {
            "capsules": [
                {"name": a.capsule.name, "directory": a.capsule.directory, "problems": a.problems}
                for a in self._attached.values()
            ]
        }

    async def find_living(self) -> None:
        """After a start: those whose views are held already.

        All at once, and a holder that does not answer is not waited for: it is asked again until
        it does.
        """
        self._finding = asyncio.create_task(self._find_all())
        await asyncio.wait({self._finding}, timeout=_FIND_S)
        if self._finding.done():
            # Raises what concerns the whole home.
            self._finding.result()

    async def _find_all(self) -> None:
        found = [self._find(capsule) for capsule in await self._read_capsules()]
        for failure in await asyncio.gather(*found, return_exceptions=True):
            if failure is not None:
                self._setbacks.note(failure)

    async def _read_capsules(self) -> list[Capsule]:
        while True:
            try:
                return self._session.store.capsules()
            except SETBACKS as error:
                self._setbacks.note(error)
            await asyncio.sleep(_FIND_S)

    async def _find(self, capsule: Capsule) -> None:
        with suppress(StateError):
            while True:
                try:
                    return await self.attach(capsule)
                except HolderSilent:
                    pass
                except HolderGone:
                    return None
                except SETBACKS as error:
                    self._setbacks.note(error)
                await asyncio.sleep(_FIND_S)

    async def attach(self, capsule: Capsule) -> None:
        """Looks after a capsule from now on, or looks again at what it may reach."""
        async with self._turns[capsule.id]:
            attached = self._attached.get(capsule.id)
            try:
                if attached is None:
                    attached = await self._begin(capsule)
                if attached is not None:
                    await attached.open()
            except HolderGone:
                await self._detach(capsule.id)
                raise

    async def _begin(self, capsule: Capsule) -> Attached | None:
        plan = isolation_plan(self._session, capsule)
        if not plan.home:
            return None
        holder = Holder(capsule.directory)
        await holder.connect()
        attached = Attached(self._session, capsule, holder, self._world)
        self._attached[capsule.id] = attached
        self._watchers[capsule.id] = asyncio.create_task(self._watch(attached))
        return attached

    async def _watch(self, attached: Attached) -> None:
        await attached.holder.gone()
        self._watchers.pop(attached.capsule.id, None)
        await self._detach(attached.capsule.id)

    async def _detach(self, capsule_id: int) -> None:
        watcher = self._watchers.pop(capsule_id, None)
        if watcher is not None:
            watcher.cancel()
        attached = self._attached.pop(capsule_id, None)
        if attached is not None:
            await self._publisher.forget(capsule_id)
            await attached.close()

    async def _on_attach(self, request: dict[str, object]) -> dict[str, object]:
        capsule = self._session.store.capsule(int(str(request.get("capsule"))))
        if capsule is None:
            raise StateError("there is no such capsule")
        with suppress(HolderGone):
            await self.attach(capsule)
        attached = self._attached.get(capsule.id)
        return {"held": attached is not None, "problems": attached.problems if attached else {}}

    async def _on_journal(self, request: dict[str, object]) -> dict[str, object]:
        """Writes down what is still being counted, for somebody who reads the journal next."""
        attached = self._attached.get(int(str(request.get("capsule"))))
        if attached is not None:
            attached.journal.flush()
        return {}


async def _serve(share: LoopShare, serving: Serving, opened: ExitStack) -> None:
    """With the doors that were opened for it."""
    enter_share(share)
    with opened:
        await serving


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(task, return_exceptions=True)
