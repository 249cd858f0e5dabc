"""What the engine asks of a keeper: `spec.json`, read once and checked whole."""

from __future__ import annotations

import json
import os

from atoll.keeper.walls import Walls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SPEC = "spec.json"
_LIMIT_BYTES = 16 << 20

_KEYS = frozenset(
    {
        "run", "argv", "env", "cwd", "tty", "rows", "cols", "foreground", "stdin", "timeout_s",
        "grace_s", "log_limit_bytes", "hold_ports", "umask", "walls", "limits",
    }
)  # fmt: skip
_OPTIONAL = frozenset({"umask", "walls", "limits"})


class SpecError(Exception):
    """The engine wrote something that the keeper cannot take."""


class Spec:
    """One run as asked for. Strings hold bytes that are no UTF-8 as lone surrogates."""

    __slots__ = (
        "argv",
        "cols",
        "cwd",
        "env",
        "foreground",
        "grace_s",
        "hold_ports",
        "limits",
        "log_limit_bytes",
        "rows",
        "run",
        "stdin_is_client",
        "timeout_s",
        "tty",
        "umask",
        "walls",
    )

    def __init__(self, raw: dict[str, object]) -> None:
        """Check `raw`; SpecError names the key that is wrong."""
        unknown = sorted(raw.keys() - _KEYS)
        missing = sorted(_KEYS - _OPTIONAL - raw.keys())
        if unknown or missing:
            raise SpecError(f"`{SPEC}`: unknown keys {unknown}, missing keys {missing}")
        self.run = _text(raw, "run")
        self.argv = _texts(raw, "argv")
        self.env = _environment(raw, "env")
        self.cwd = _text(raw, "cwd")
        self.tty = _flag(raw, "tty")
        self.rows = int(_number(raw, "rows"))
        self.cols = int(_number(raw, "cols"))
        self.foreground = _flag(raw, "foreground")
        stdin = _text(raw, "stdin")
        if stdin not in ("client", "null"):
            raise SpecError(f"`{SPEC}`: `stdin` is `{stdin}`")
        self.stdin_is_client = stdin == "client"
        self.timeout_s = None if raw["timeout_s"] is None else _number(raw, "timeout_s")
        self.grace_s = _number(raw, "grace_s")
        self.log_limit_bytes = int(_number(raw, "log_limit_bytes"))
        self.hold_ports = _ports(raw, "hold_ports")
        self.umask = int(_number(raw, "umask")) & 0o777 if "umask" in raw else 0o022
        self.walls = _walls(raw)
        self.limits = raw.get("limits")


def load_spec(
    run_dir: str, given: Mapping[str, object] | None = None, *, is_owners: bool = False
) -> Spec:
    """SpecError if the content is wrong, OSError if it cannot be read.

    `given` holds the `"walls"` and `"limits"` that every run has, whatever its spec says: that can
    only narrow the walls, by `"write"` and `"alone"`. One that `is_owners` has no walls.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(os.path.join(run_dir, SPEC), flags), "rb") as file:
        content = file.read(_LIMIT_BYTES + 1)
    if len(content) > _LIMIT_BYTES:
        raise SpecError(f"`{SPEC}` is longer than {_LIMIT_BYTES} bytes")
    try:
        raw: object = json.loads(content)
    except ValueError as error:
        raise SpecError(f"`{SPEC}` is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise SpecError(f"`{SPEC}` does not hold an object")
    if given is not None:
        raw["limits"] = given.get("limits")
        raw["walls"] = None if is_owners else _narrowed(given.get("walls"), raw.get("walls"))
    return Spec(raw)


def _narrowed(given: object, asked: object) -> object:
    if given is None and asked is not None:
        raise SpecError(f"`{SPEC}`: there are no walls in this view")
    if not isinstance(given, dict) or not isinstance(asked, dict):
        return given
    narrow = {key: asked[key] for key in ("write", "alone") if key in asked}
    return {**given, **narrow}


def _walls(raw: dict[str, object]) -> Walls | None:
    value = raw.get("walls")
    if value is None:
        return None
    try:
        return Walls(value)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"`{SPEC}`: `walls` are not whole: {error}") from error


def _text(raw: dict[str, object], key: str) -> str:
    value = raw[key]
    if not isinstance(value, str):
        raise SpecError(f"`{SPEC}`: `{key}` is not a string")
    return value


def _flag(raw: dict[str, object], key: str) -> bool:
    value = raw[key]
    if not isinstance(value, bool):
        raise SpecError(f"`{SPEC}`: `{key}` is not true or false")
    return value


def _number(raw: dict[str, object], key: str) -> float:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise SpecError(f"`{SPEC}`: `{key}` is not a number from 0")
    return value


def _texts(raw: dict[str, object], key: str) -> list[str]:
    value = raw[key]
    if not isinstance(value, list) or not value:
        raise SpecError(f"`{SPEC}`: `{key}` is not a list of strings")
    if not all(isinstance(item, str) for item in value):
        raise SpecError(f"`{SPEC}`: `{key}` is not a list of strings")
    return value


def _environment(raw: dict[str, object], key: str) -> dict[str, str]:
    value = raw[key]
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise SpecError(f"`{SPEC}`: `{key}` is not an object of strings")
    return value


def _ports(raw: dict[str, object], key: str) -> list[int]:
    value = raw[key]
    if not isinstance(value, list):
        raise SpecError(f"`{SPEC}`: `{key}` is not a list of ports")
    if not all(type(item) is int and 0 < item < 65536 for item in value):
        raise SpecError(f"`{SPEC}`: `{key}` is not a list of ports")
    return value
