"""The processes that hold a capsule's view, start its runs, own their output and leave nothing.

Law of the package: standard library only, one thread, crash-only. It also does without `typing`
and `dataclasses` at run time (hence `TYPE_CHECKING = False`, which type checkers know): every
active capsule would pay for them in memory.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os


def bootstrap(package_root: str | os.PathLike[str]) -> list[str]:
    """The command that starts a fork server; `SOCKET_FD LABEL` follow it.

    `package_root` is the directory that holds the `atoll` package. It goes to the end of the search
    path: a back-port beside `atoll` must not replace a module of the standard library.
    """
    program = (
        f"import sys; sys.path.append({str(package_root)!r}); "
        "from atoll.keeper.forkserver import main; main()"
    )
    return [sys.executable, "-I", "-S", "-c", program]
