"""For tests that must not be root: as root nothing is forbidden, and nothing is proven."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread  # noqa: F401
import os
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atoll.host import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65_534


@pytest.fixture
def ordinary_user() -> Callable[[Callable[[], None]], None]:
    """`ordinary_user(function)`: runs it in a child without privileges; what fails there fails."""

    def run(function: Callable[[], None]) -> None:
        if os.geteuid() != 0:
            function()
            return
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # The child runs nothing but the function, and ends without unwinding.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _run_as_nobody(function, writer)
        os.close(writer)
        with os.fdopen(reader) as stream:
            said = stream.read()
        os.waitpid(pid, 0)
        if said != "ok":
            pytest.fail(f"as an ordinary user:\n{said or 'the child died'}")

    return run


def _run_as_nobody(function: Callable[[], None], writer: int) -> None:
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        function()
        os.write(writer, b"ok")
    except BaseException:  # noqa: BLE001 - told to the parent, which fails
        os.write(writer, traceback.format_exc().encode())
    finally:
        os._exit(0)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that an ordinary user can reach and owns; pytest's own are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="atoll-test-"))
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    yield place
    os.chmod(place, 0o700)
    # An overlay leaves a directory that its own user may not open.
    files.remove_tree(place, within=place.parent)
