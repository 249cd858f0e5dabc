"""A thread pool for many small tasks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

Progress = Callable[[int, int], None]
"""Called with the number of files and bytes done, in the caller's thread."""

_PROGRESS_S = 0.1
_MOST_THREADS = 4


class WorkerThread:
    """The progress of one thread; `tick` raises to stop it."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.files = 0
        self.bytes = 0

    def tick(self, moved: int) -> None:
        self.bytes += moved
        if self._stop.is_set():
            raise _Stopped


class _Stopped(Exception):  # noqa: N818 - a way out, not an error
    pass


_Task = TypeVar("_Task")


def run_parallel(
    tasks: Iterable[_Task],
    work: Callable[[_Task, WorkerThread], None],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[WorkerThread]:
    """Works through `tasks` in several threads, which have ended when this returns or raises.

    By default there is one thread per processor, up to four: more would mostly wait for the
    interpreter lock.
    """
    from concurrent.futures import (  # noqa: PLC0415 - costs as much as a clone
        FIRST_EXCEPTION,
        ThreadPoolExecutor,
        wait,
    )

    waiting = deque(tasks)
    stop = threading.Event()
    threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    workers = [WorkerThread(stop) for _ in range(threads)]

    def work_through(worker: WorkerThread) -> None:
        with suppress(_Stopped):
            while waiting:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                work(task, worker)
                worker.tick(0)

    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(work_through, worker) for worker in workers]
            running = True
            while running:
                done, pending = wait(futures, _PROGRESS_S, FIRST_EXCEPTION)
                running = bool(pending) and not any(future.exception() for future in done)
                if progress is not None:
                    progress(*progress_of(workers))
        finally:
            # Also on Ctrl-C, and before the pool waits for its threads.
            stop.set()
    for future in futures:
        future.result()
    return workers


def progress_of(workers: Iterable[WorkerThread]) -> tuple[int, int]:
    return sum(worker.files for worker in workers), sum(worker.bytes for worker in workers)
