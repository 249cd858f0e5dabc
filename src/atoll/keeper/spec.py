"""Reads `spec.json`, in which the engine describes a run."""

from __future__ import annotations

import json
import os

from atoll.model.enclosure import EnclosureError, KeeperSpec, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import Limits, Walls

SPEC = "spec.json"
_LIMIT_BYTES = 16 << 20


class KeeperSpecError(Exception):
    """The engine wrote something that the keeper cannot use."""


class RunDefaults:
    """The walls and limits that a holder imposes on its runs, independent of their specs."""

    __slots__ = ("limits", "walls")

    def __init__(self, walls: Walls | None, limits: Limits | None) -> None:
        self.walls = walls
        self.limits = limits

    def on_command(self, spec: KeeperSpec) -> KeeperSpec:
        """The spec of a command of Atoll: it can narrow the walls of the view, not do without."""
        if self.walls is None:
            return spec
        write, alone = (spec.walls.write, spec.walls.alone) if spec.walls else ((), False)
        walls = self.walls.narrowed_to(write, alone=alone)
        return spec._replace(walls=walls, limits=self.limits)


def load_spec(
    run_dir: str, imposed: RunDefaults | None = None, *, is_owners: bool = False
) -> KeeperSpec:
    """KeeperSpecError if the content is wrong, OSError if it cannot be read.

    With `imposed`, the spec can only narrow the walls, by `write` and `alone`. A run that
    `is_owners` has no walls.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(os.path.join(run_dir, SPEC), flags), "rb") as file:
        content = file.read(_LIMIT_BYTES + 1)
    if len(content) > _LIMIT_BYTES:
        raise KeeperSpecError(f"`{SPEC}` is longer than {_LIMIT_BYTES} bytes")
    try:
        raw: object = json.loads(content)
    except ValueError as error:
        raise KeeperSpecError(f"`{SPEC}` is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise KeeperSpecError(f"`{SPEC}` does not hold an object")
    if imposed is None:
        return parse_spec(raw)
    asked = raw.pop("walls", None)
    raw.pop("limits", None)
    walls = None if is_owners else _narrowed(imposed.walls, asked)
    return parse_spec(raw)._replace(walls=walls, limits=imposed.limits)


def parse_spec(raw: object) -> KeeperSpec:
    """KeeperSpecError names the key that is wrong."""
    try:
        spec = parse(KeeperSpec, raw)
    except EnclosureError as error:
        raise KeeperSpecError(f"`{SPEC}`: {error}") from error
    if not spec.argv:
        raise KeeperSpecError(f"`{SPEC}`: `argv` is empty")
    if spec.stdin not in ("client", "null"):
        raise KeeperSpecError(f"`{SPEC}`: `stdin` is `{spec.stdin}`")
    if not all(0 < port < 65536 for port in spec.hold_ports):
        raise KeeperSpecError(f"`{SPEC}`: `hold_ports` is not a list of ports")
    return spec._replace(umask=spec.umask & 0o777)


def _narrowed(imposed: Walls | None, asked: object) -> Walls | None:
    """Of what is asked only `write` and `alone` count: an earlier version may have written it."""
    if asked is None:
        return imposed
    if imposed is None:
        raise KeeperSpecError(f"`{SPEC}`: there are no walls in this view")
    if not isinstance(asked, dict):
        raise KeeperSpecError(f"`{SPEC}`: `walls` is not an object")
    write, alone = asked.get("write", []), asked.get("alone", False)
    if not isinstance(write, list) or not all(isinstance(item, str) for item in write):
        raise KeeperSpecError(f"`{SPEC}`: `write` is not a list of strings")
    if not isinstance(alone, bool):
        raise KeeperSpecError(f"`{SPEC}`: `alone` is not true or false")
    return imposed.narrowed_to(tuple(write), alone=alone)
