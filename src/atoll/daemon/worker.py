"""The worker process: serves all active capsules until nothing needs it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.daemon.agent_watcher import AgentWatcher
from atoll.daemon.checkout_watcher import CheckoutWatcher
from atoll.daemon.control import Control
from atoll.daemon.fair_loop import FairLoop
from atoll.daemon.heartbeat import Heartbeat
from atoll.daemon.holder_network import HolderNetwork
from atoll.daemon.memory import MemoryTrimmer
from atoll.daemon.ports.checkout_ports import parse_named
from atoll.daemon.ports.host_listeners import ADMISSION
from atoll.daemon.ports.publisher import Publisher
from atoll.daemon.ports.router import Router
from atoll.daemon.secret_watcher import SecretWatcher
from atoll.daemon.served_capsules import ServedCapsules
from atoll.daemon.watcher_memory import WatcherMemory
from atoll.drivers.contracts import VaultKey
from atoll.engine.secret import vault_keys
from atoll.engine.state.session import ignore, open_session
from atoll.model import daemon_messages as messages

if TYPE_CHECKING:
    from atoll.model.shapes import DaemonStatusShape

IDLE_S = 300.0
"""How long an unused daemon keeps running."""
_CHECK_S = 5.0


def work(home: Path, listener: socket.socket, heartbeat: Heartbeat, memory: WatcherMemory) -> None:
    """Runs until it is stopped, or until nothing has needed it for a while.

    Raises StateError when another version of Atoll has taken the home over.
    """
    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(Worker(home, listener, memory).serve(heartbeat))


class Worker:
    def __init__(self, home: Path, listener: socket.socket, memory: WatcherMemory) -> None:
        """`memory` has what an earlier worker has kept for this one."""
        self._session = open_session(home=home, warn=ignore)
        self._memory = memory
        memory.keep_from_children()
        self._hold_kept_key()
        ADMISSION.configure(home)
        self._publisher = Publisher(self._session)
        self._router = Router(self._publisher)
        self._capsules = ServedCapsules(
            self._session, self._publisher, lambda capsule: HolderNetwork(capsule.directory)
        )
        self._watching = CheckoutWatcher(self._session)
        self._home = _identify(home)
        self._ending = asyncio.Event()
        self._began_at = time.time()
        self._control = Control(listener, self._answer)

    async def serve(self, heartbeat: Heartbeat) -> None:
        loop = asyncio.get_running_loop()
        heartbeat.start(loop)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._ending.set)
        async with self._capsules, asyncio.TaskGroup() as tasks:
            await self._publisher.sync()
            await self._capsules.find_living()
            serving = [
                tasks.create_task(part.serve())
                for part in (
                    self._control,
                    self._publisher,
                    self._router,
                    self._capsules,
                    self._watching,
                    AgentWatcher(self._session),
                    SecretWatcher(self._session),
                    MemoryTrimmer(),
                )
            ]
            await self._until_unneeded()
            for task in serving:
                task.cancel()

    async def _until_unneeded(self) -> None:
        needed_at = time.monotonic()
        while time.monotonic() < needed_at + IDLE_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._ending.wait()
                    return
            if not self._has_home():
                return
            needed = (
                self._capsules.are_needed,
                self._publisher.is_needed,
                self._watching.is_needed,
            )
            if any(needed):
                needed_at = time.monotonic()

    def _has_home(self) -> bool:
        try:
            return _identify(self._session.home) == self._home
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # It could not be checked, which proves nothing.
            return True

    async def _answer(  # noqa: PLR0911 - one per request
        self, request: messages.DaemonRequest
    ) -> messages.DaemonReply:
        match request:
            case messages.StatusRequest():
                return messages.StatusReply(self._status())
            case messages.StopRequest():
                self._ending.set()
                return messages.DoneReply()
            case messages.AttachRequest(capsule):
                return await self._capsules.serve_capsule(capsule)
            case messages.JournalRequest(capsule):
                self._capsules.flush_journal(capsule)
                return messages.DoneReply()
            case messages.RouterRequest():
                return await self._router.report()
            case messages.PortsRequest(project, capsule_id):
                return messages.PortsReply(await self._publisher.status(project, capsule_id))
            case messages.CheckoutRequest(project, capsule_id, ports):
                named = parse_named([*ports])
                report = await self._publisher.checkout(project, capsule_id, named)
                return messages.PortsReply(report)
            case messages.ChangesRequest():
                return await self._watching.changes(request)
            case messages.UnlockRequest() | messages.LockRequest():
                return self._set_vault_key(request)

    def _set_vault_key(
        self, request: messages.UnlockRequest | messages.LockRequest
    ) -> messages.DoneReply:
        home = self._session.home
        vault_keys.drop(home)
        self._memory.store(b"")
        if isinstance(request, messages.UnlockRequest):
            vault_keys.hold(home, VaultKey(request.id, bytes.fromhex(request.key)))
            self._memory.store(f"{request.key} {request.id}".encode())
        return messages.DoneReply()

    def _hold_kept_key(self) -> None:
        """The key that was given to the worker which this one replaces."""
        key, _, number = self._memory.load().decode().partition(" ")
        if key:
            vault_keys.hold(self._session.home, VaultKey(number, bytes.fromhex(key)))

    def _status(self) -> DaemonStatusShape:
        return {
            "pid": os.getpid(),
            "since": self._began_at,
            "capsules": self._capsules.status(),
            "watched": self._watching.watched(),
            "freezing": self._watching.is_freezing,
        }


def _identify(place: Path) -> tuple[int, int]:
    status = os.stat(place)
    return status.st_dev, status.st_ino
