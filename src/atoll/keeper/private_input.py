"""The private variables of a run, which its starter sends in a memfd: no file ever holds them."""

from __future__ import annotations

import json
import os

from atoll.keeper.wire import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LIMIT_BYTES = 8 << 20


class PrivateInput:
    """Variables for the command, and the values to remove from its log."""

    __slots__ = ("env", "redact")

    def __init__(self, env: Mapping[str, str], redact: Iterable[bytes]) -> None:
        self.env = dict(env)
        self.redact = tuple(redact)

    def __bool__(self) -> bool:
        return bool(self.env or self.redact)

    def send(self) -> int:
        """Returns a memfd with the content, which is the caller's to close."""
        texts = [value.decode("utf-8", "surrogateescape") for value in self.redact]
        content = json.dumps({"env": self.env, "redact": texts}).encode("ascii")
        fd = os.memfd_create("atoll-private")
        try:
            while content:
                content = content[os.write(fd, content) :]
        except BaseException:
            os.close(fd)
            raise
        return fd


def receive(fd: int) -> PrivateInput:
    """Reads and closes the memfd. Raises WireError, which never quotes the content."""
    with open(fd, "rb") as file:
        # The sender shares the offset.
        file.seek(0)
        content = file.read(LIMIT_BYTES + 1)
    try:
        raw = json.loads(content)
        env = {str(name): str(value) for name, value in raw["env"].items()}
        redact = [text.encode("utf-8", "surrogateescape") for text in raw["redact"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise WireError("the private variables of the run cannot be read") from None
    return PrivateInput(env, redact)
