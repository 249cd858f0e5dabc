"""A prepared change of one ref of the owner's repository: git holds the lock of the ref, and has
verified its old value, until the change is committed or given up.

If this process is killed, git reads the end of its input, gives the change up and unlocks the ref.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from atoll.host import git, process
from atoll.host.pipes import Dialogue
from atoll.model.errors import DriverError

_TIMEOUT_S = 3600.0
"""Files may be checked out meanwhile."""


class RefBusyError(DriverError):
    """The ref is not where it was expected, or another git has locked it."""


class RefTransaction:
    """The prepared change. It is given up at the end unless it was committed."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self.is_committed = False

    def prepare(self, act: str) -> None:
        """Raises DriverError when git cannot lock the ref, or it is not where it should be."""
        self._say("start")
        self._dialogue.ask(f"{act}\n".encode())
        self._say("prepare")

    def commit(self) -> None:
        """Raises DriverError when git fails: then the ref may have moved or not."""
        self._say("commit")
        self.is_committed = True

    def abort(self) -> None:
        self._say("abort")

    def _say(self, word: str) -> None:
        self._dialogue.ask(f"{word}\n".encode())
        answer = self._dialogue.read_line()
        if answer != f"{word}: ok".encode():
            raise DriverError(f"`git update-ref` answers `{answer[:100]!r}` to `{word}`")


@contextmanager
def prepared(
    ref: str, *, old: str, new: str | None, repository: str, cwd: str, message: str
) -> Iterator[RefTransaction]:
    """Locks `ref`, which must be at `old`, to move it to `new`; None only verifies it.

    `cwd` is the checkout whose HEAD logs the change too, or the repository. Raises RefBusyError.
    """
    act = f"verify {ref} {old}" if new is None else f"update {ref} {new} {old}"
    argv = ("git", *git.SAFE, *git.DURABLE, "update-ref", "-m", message, "--stdin")
    with process.converse(process.Program(argv, cwd=cwd), timeout_s=_TIMEOUT_S) as dialogue:
        transaction = RefTransaction(dialogue)
        try:
            transaction.prepare(act)
        except DriverError as error:
            raise RefBusyError(f"the ref `{ref}` cannot be locked at {old[:10]}") from error
        try:
            yield transaction
        finally:
            if not transaction.is_committed:
                # The locks are removed before git is killed.
                with suppress(DriverError):
                    transaction.abort()
    if transaction.is_committed:
        git.sync_ref(ref, cwd=repository)
