"""Runs a module of Atoll in a child process that is root in a user namespace.

An ordinary user owns what their capsules write, but cannot read a file or directory whose mode
forbids it. Root of a user namespace can, for files of that user only. Only modules of Atoll run
there: no other program is started.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from atoll.host.process import run
from atoll.host.programs import python_command
from atoll.model.errors import StateError

_REFUSED = 3


def call(module: str, arguments: list[str]) -> list[object]:
    """Runs `main` of a module in such a child and returns its result.

    Raises StateError if the child did, and DriverError if it failed otherwise.
    """
    completed = run(python_command(module, *arguments), cwd="/", allowed=(0, _REFUSED))
    if completed.code == _REFUSED:
        raise StateError(completed.text)
    answer = json.loads(completed.stdout)
    if not isinstance(answer, list):
        raise StateError("a child process of Atoll did not answer")
    return answer


def answer(work: Callable[[list[str]], tuple[object, ...]]) -> None:
    """The body of `main` in the child: enters the namespace, works, and prints the result."""
    enter()
    try:
        result = json.dumps(work(sys.argv[1:]))
    except StateError as error:
        os.write(1, error.message.encode(errors="replace"))
        sys.exit(_REFUSED)
    os.write(1, result.encode())


def enter() -> None:
    """Makes this process, which must be single-threaded, root in a user namespace."""
    from atoll.host import kernel  # noqa: PLC0415 - libc is only for the child

    maps = {
        "setgroups": "deny",
        "uid_map": f"0 {os.geteuid()} 1",
        "gid_map": f"0 {os.getegid()} 1",
    }
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)
