"""The keyring of the operating system, through the library `keyring`.

A backend that stores nothing, or in plain text, does not count. A keyring may ask its owner before
it answers, so every request has a time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from atoll.model.errors import SecretUnavailable

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

_PATIENCE_S = 60.0

T = TypeVar("T")


def read(service: str, user: str) -> str | None:
    """None when the keyring has no such entry. Raises SecretUnavailable without a keyring."""
    backend = _find_backend()
    if backend is None:
        raise SecretUnavailable(
            "your keyring cannot be reached from here",
            hint="run this in your desktop session, where DBUS_SESSION_BUS_ADDRESS is set",
        )
    return _ask(lambda: backend.get_password(service, user))


def write(service: str, user: str, text: str) -> bool:
    """Returns False, and stores nothing, when there is no keyring that takes it."""
    backend = _find_backend()
    if backend is None:
        return False

    def store() -> bool:
        backend.set_password(service, user, text)
        return bool(backend.get_password(service, user) == text)

    try:
        return _ask(store)
    except SecretUnavailable:
        return False


def remove(service: str, user: str) -> None:
    """A missing entry, or keyring, is fine."""
    from keyring.errors import PasswordDeleteError  # noqa: PLC0415 - slow

    backend = _find_backend()
    if backend is None:
        return

    def delete() -> None:
        try:
            backend.delete_password(service, user)
        except PasswordDeleteError:
            return

    _ask(delete)


def _find_backend() -> KeyringBackend | None:
    import keyring  # noqa: PLC0415 - slow
    from keyring.backends import chainer, fail, null  # noqa: PLC0415 - slow

    backend = keyring.get_keyring()
    if isinstance(backend, fail.Keyring | null.Keyring):
        return None
    if isinstance(backend, chainer.ChainerBackend) and not backend.backends:
        return None
    return backend if backend.priority >= 1 else None


def _ask(request: Callable[[], T]) -> T:
    """Raises SecretUnavailable when the keyring refuses, or does not answer in time."""
    from keyring.errors import KeyringError  # noqa: PLC0415 - slow

    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(request())
        except (KeyringError, OSError, RuntimeError, ValueError) as error:
            answer.set_exception(error)

    # Not a pool: Python waits for those at its end.
    threading.Thread(target=work, daemon=True).start()
    try:
        return answer.result(_PATIENCE_S)
    except TimeoutError:
        raise SecretUnavailable("your keyring does not answer", hint="unlock it") from None
    except (KeyringError, OSError, RuntimeError, ValueError) as error:
        raise SecretUnavailable(
            f"your keyring refuses: {type(error).__name__}", hint="unlock it"
        ) from None
