"""The worker: finds the capsules that live, and looks after them until nothing needs it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from atoll.daemon.capsules import Capsules
from atoll.daemon.control import Control
from atoll.daemon.fair_loop import FairLoop
from atoll.daemon.heartbeat import Heartbeat
from atoll.daemon.memory import MemoryTrimmer
from atoll.daemon.ports.admission import ADMISSION
from atoll.daemon.ports.publishing import Publisher
from atoll.daemon.ports.router import Router
from atoll.daemon.watching import Watching
from atoll.engine.session import open_session

IDLE_S = 300.0
"""How long a daemon stays that looks after nothing."""
_LOOK_S = 5.0


def work(home: Path, listener: socket.socket, heartbeat: Heartbeat) -> None:
    """Until it is told to end, or nothing has needed it for a while.

    Raises StateError when another version of Atoll has taken the home over.
    """
    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(Worker(home, listener).serve(heartbeat))


class Worker:
    def __init__(self, home: Path, listener: socket.socket) -> None:
        self._session = open_session(home=home, warn=_ignore)
        ADMISSION.configure(home)
        self._publisher = Publisher(self._session)
        self._router = Router(self._publisher)
        self._capsules = Capsules(self._session, self._publisher)
        self._watching = Watching(self._session)
        self._home = _identify(home)
        self._ending = asyncio.Event()
        self._began_at = time.time()
        self._control = Control(
            listener,
            {
                "status": self._status,
                "stop": self._stop,
                **self._capsules.handlers(),
                **self._publisher.handlers(),
                **self._router.handlers(),
                **self._watching.handlers(),
            },
        )

    async def serve(self, heartbeat: Heartbeat) -> None:
        loop = asyncio.get_running_loop()
        heartbeat.start(loop)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._ending.set)
        async with self._capsules, asyncio.TaskGroup() as tasks:
            await self._publisher.look()
            await self._capsules.find_living()
            serving = [
                tasks.create_task(part.serve())
                for part in (
                    self._control,
                    self._publisher,
                    self._router,
                    self._capsules,
                    self._watching,
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
                async with asyncio.timeout(_LOOK_S):
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
            # It could not be looked at, which says nothing about it.
            return True

    async def _status(self, request: dict[str, object]) -> dict[str, object]:
        del request
        return {
            "pid": os.getpid(),
            "since": self._began_at,
            **self._capsules.status(),
            **self._watching.status(),
        }

    async def _stop(self, request: dict[str, object]) -> dict[str, object]:
        del request
        self._ending.set()
        return {}


def _identify(place: Path) -> tuple[int, int]:
    status = os.stat(place)
    return status.st_dev, status.st_ino


def _ignore(text: str) -> None:
    del text
