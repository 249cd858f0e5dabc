"""The capsules that are active and have a network of their own: their egress and their ports."""

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

from atoll.daemon.broker.broker import Broker
from atoll.daemon.broker.granted_secrets import GrantedSecrets, StoredSecrets
from atoll.daemon.broker.metering import Meter
from atoll.daemon.broker.tls_streams import ServerTrust
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.gateway import Egress, HostPortForward
from atoll.daemon.egress.host_network import HostNetwork
from atoll.daemon.egress.limits import EgressShare
from atoll.daemon.fair_loop import LoopShare, enter_share
from atoll.daemon.ports.publisher import Publisher
from atoll.daemon.resource_errors import TRANSIENT_ERRORS, TransientErrorLog
from atoll.drivers.contracts import CapsuleNetwork, NetworkGone, NetworkSilent
from atoll.engine.network import rules
from atoll.engine.project import levels
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.model.daemon_messages import AttachReply
from atoll.model.errors import StateError
from atoll.model.shapes import ServedCapsuleShape
from atoll.model.state import CapsuleRecord

_GRANT = "host:"
_CHECK_S = 0.4
_FIND_S = 2.0
"""How long a start waits for networks, and the interval between retries."""

Serving = Callable[[], Coroutine[Any, Any, None]]


class ServedCapsule:
    """The egress, host grants and ports of one capsule."""

    def __init__(
        self,
        session: Session,
        capsule: CapsuleRecord,
        network: CapsuleNetwork,
        host_network: HostNetwork,
        trust: ServerTrust,
    ) -> None:
        self._session = session
        self.capsule = capsule
        self.network = network
        self._host_network = host_network
        self.share = LoopShare()
        """Its share of the loop, so that it does not delay others."""
        self.journal = Journal(Path(capsule.directory))
        self._egress_share = EgressShare()
        secrets = GrantedSecrets(StoredSecrets(session, capsule.id))
        self._meter = Meter(session, capsule.id)
        self._broker = Broker(secrets, Path(capsule.directory), trust, self._meter)
        self._policy = partial(rules.policy_of, session, capsule.id)
        self._served: dict[str, asyncio.Task[None]] = {}
        self.problems: dict[str, str] = {}
        """What could not be opened, mostly because a process inside has taken the port."""

    async def open(self) -> None:
        """Opens what the policy asks for now and is not open yet, and closes what it does not."""
        plan = isolation_plan(self._session, self.capsule)
        wanted: dict[str, Callable[[], Awaitable[asyncio.Task[None]]]] = {}
        if rules.has_egress(self.capsule.level, plan):
            wanted["egress"] = self._open_egress
            for port in self._policy().host_ports():
                wanted[f"{_GRANT}{port}"] = partial(self._open_host_port, port)
        for key in [key for key in self._served if key not in wanted]:
            await _end(self._served.pop(key))
        for key, opening in wanted.items():
            if key in self._served and not self._served[key].done():
                continue
            try:
                self._served[key] = await opening()
                self.problems.pop(key, None)
            except NetworkGone:
                raise
            except OSError as error:
                self.problems[key] = error.strerror or str(error)

    async def _open_egress(self) -> asyncio.Task[None]:
        with ExitStack() as opened:
            sockets = await self.network.open_egress(opened)
            egress = Egress(
                capsule=self.capsule.name,
                policy=self._policy,
                journal=self.journal,
                host_network=self._host_network,
                share=self._egress_share,
                directory=Path(self.capsule.directory),
                broker=self._broker,
            )
            return _start(self.share, partial(egress.serve, sockets), opened.pop_all())

    async def _open_host_port(self, port: int) -> asyncio.Task[None]:
        forward = HostPortForward(
            port,
            capsule=self.capsule.name,
            policy=self._policy,
            journal=self.journal,
            host_network=self._host_network,
            share=self._egress_share,
        )
        with ExitStack() as opened:
            listeners = await self.network.listen(opened, port)
            return _start(self.share, partial(forward.serve, listeners), opened.pop_all())

    @property
    def granted(self) -> list[int]:
        """Ports inside that are forwarded to the host."""
        return [int(key.removeprefix(_GRANT)) for key in self._served if key.startswith(_GRANT)]

    async def dial(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """From here on the task that serves the connection belongs to the capsule's share: the
        router and checked-out ports accept for many capsules.
        """
        enter_share(self.share)
        return await self.network.dial(port, address)

    async def close(self) -> None:
        for task in self._served.values():
            await _end(task)
        self._broker.close()
        self._meter.close()
        self.network.close()
        self.journal.close()


class ServedCapsules:
    """All of them. Leaving the context closes every listener."""

    def __init__(
        self,
        session: Session,
        publisher: Publisher,
        network_of: Callable[[CapsuleRecord], CapsuleNetwork],
    ) -> None:
        self._session = session
        self._network_of = network_of
        self._publisher = publisher
        self._host_network = HostNetwork.of(os.environ)
        self._trust = ServerTrust(os.environ.get("SSL_CERT_FILE"))
        self._attached: dict[int, ServedCapsule] = {}
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per capsule: a network that does not answer delays no other."""
        self._finding: asyncio.Task[None] | None = None
        self._error_log = TransientErrorLog("looking for the capsules that run")

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
        self._host_network.close()

    async def serve(self) -> None:
        """Watches, until cancelled, which ports listen in the capsules.

        Each capsule has its own task, which is not started again before it has ended: a slow
        answer delays no other capsule.
        """
        looks: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                for capsule_id in [key for key, task in looks.items() if task.done()]:
                    self._judge(capsule_id, looks.pop(capsule_id))
                for capsule_id, attached in self._attached.items():
                    is_due = attached.network.may_have_changed()
                    is_due |= self._publisher.is_unfinished(capsule_id)
                    if capsule_id not in looks and is_due:
                        looks[capsule_id] = asyncio.create_task(self._check(attached))
                await asyncio.sleep(_CHECK_S)
        finally:
            for task in looks.values():
                await _end(task)

    def _judge(self, capsule_id: int, look: asyncio.Task[None]) -> None:
        """Reports an error of one capsule. Raises StateError, which concerns the whole home."""
        error, attached = look.exception(), self._attached.get(capsule_id)
        if isinstance(error, StateError) and not isinstance(error, TRANSIENT_ERRORS):
            raise error
        if attached is None:
            return
        if error is None:
            attached.problems.pop("ports", None)
            return
        problem = f"{type(error).__name__}: {error}"
        if attached.problems.get("ports") != problem:
            attached.problems["ports"] = problem
            context = {"message": f"ports of `{attached.capsule.name}`", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _check(self, attached: ServedCapsule) -> None:
        # Listeners that are opened here belong to the capsule's share, and so do their connections.
        enter_share(attached.share)
        capsule_id = attached.capsule.id
        with suppress(NetworkGone):
            found = await attached.network.listening()
            if self._attached.get(capsule_id) is not attached:
                return
            await self._publisher.update(
                attached, found.places, granted=attached.granted, is_complete=found.is_complete
            )
            if self._attached.get(capsule_id) is not attached:
                # It was detached meanwhile.
                await self._publisher.forget(capsule_id)

    @property
    def are_needed(self) -> bool:
        return bool(self._attached)

    def status(self) -> list[ServedCapsuleShape]:
        return [
            {"name": a.capsule.name, "directory": a.capsule.directory, "problems": a.problems}
            for a in self._attached.values()
        ]

    async def find_living(self) -> None:
        """After a start: attaches capsules that are active already.

        All at once. Does not wait for a network that does not answer: retries until it does.
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
                self._error_log.note(failure)

    async def _read_capsules(self) -> list[CapsuleRecord]:
        while True:
            try:
                return self._session.store.capsules()
            except TRANSIENT_ERRORS as error:
                self._error_log.note(error)
            await asyncio.sleep(_FIND_S)

    async def _find(self, capsule: CapsuleRecord) -> None:
        with suppress(StateError):
            while True:
                try:
                    return await self.attach(capsule)
                except NetworkSilent:
                    pass
                except NetworkGone:
                    return None
                except TRANSIENT_ERRORS as error:
                    self._error_log.note(error)
                await asyncio.sleep(_FIND_S)

    async def attach(self, capsule: CapsuleRecord) -> None:
        """Serves a capsule from now on, or applies a changed policy to it."""
        async with self._turns[capsule.id]:
            attached = self._attached.get(capsule.id)
            try:
                if attached is None:
                    attached = await self._begin(capsule)
                if attached is not None:
                    await attached.open()
            except NetworkGone:
                await self._detach(capsule.id)
                raise

    async def _begin(self, capsule: CapsuleRecord) -> ServedCapsule | None:
        if not levels.has_own_network(capsule.level):
            return None
        isolation_plan(self._session, capsule)  # raises if it was removed meanwhile
        network = self._network_of(capsule)
        await network.connect()
        attached = ServedCapsule(self._session, capsule, network, self._host_network, self._trust)
        self._attached[capsule.id] = attached
        self._watchers[capsule.id] = asyncio.create_task(self._watch(attached))
        return attached

    async def _watch(self, attached: ServedCapsule) -> None:
        await attached.network.wait_closed()
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

    async def serve_capsule(self, capsule_id: int) -> AttachReply:
        capsule = self._session.store.capsule(capsule_id)
        if capsule is None:
            raise StateError("there is no such capsule")
        with suppress(NetworkGone):
            await self.attach(capsule)
        attached = self._attached.get(capsule.id)
        return AttachReply(attached is not None, attached.problems if attached else {})

    def flush_journal(self, capsule_id: int) -> None:
        """Writes refusals that are still being counted, so that they can be read."""
        attached = self._attached.get(capsule_id)
        if attached is not None:
            attached.journal.flush()


def _start(share: LoopShare, serving: Serving, opened: ExitStack) -> asyncio.Task[None]:
    """Serves sockets that were opened for it, and closes them, also if cancelled at once."""

    async def serve() -> None:
        enter_share(share)
        await serving()

    task = asyncio.create_task(serve())
    task.add_done_callback(lambda _: opened.close())
    return task


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(task, return_exceptions=True)
