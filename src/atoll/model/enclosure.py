"""How processes are started inside a capsule: the values that drivers, engine and keeper share.

The keeper imports this module, so it uses the standard library only and does without `typing` at
run time. `encode` and `parse` turn each value into plain JSON and back. `parse` is strict: unknown
keys, missing keys and values of another type are errors. Fields that have their default value are
not encoded.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from typing import NamedTuple, Self, TypeVar

    T = TypeVar("T", bound=NamedTuple)
else:
    from operator import itemgetter

    class _NamedTupleType(type):
        def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, object]) -> type:
            if not bases:
                return super().__new__(mcs, name, bases, members)
            fields = tuple(members.get("__annotations__", ()))
            defaults = {field: members[field] for field in fields if field in members}
            getters = {field: property(itemgetter(i)) for i, field in enumerate(fields)}
            own = {"__slots__": (), "_fields": fields, "_field_defaults": defaults}
            return type(name, (_Fields,), {**members, **getters, **own})

    class _Fields(tuple):
        __slots__ = ()

        def __new__(cls, *args: object, **named: object) -> Self:
            given = dict(zip(cls._fields, args, strict=False))
            values = {**cls._field_defaults, **given, **named}
            is_twice = len(given) + len(named) != len({**given, **named})
            if is_twice or len(args) > len(cls._fields) or values.keys() != {*cls._fields}:
                raise TypeError(f"wrong arguments for {cls.__name__}{cls._fields}")
            return tuple.__new__(cls, [values[field] for field in cls._fields])

        @classmethod
        def _make(cls, values: Iterable[object]) -> Self:
            return cls(*values)

        def _asdict(self) -> dict[str, object]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes: object) -> Self:
            return type(self)(**{**self._asdict(), **changes})

        def __getnewargs__(self) -> tuple[object, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            named = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({named})"

    class NamedTuple(metaclass=_NamedTupleType):
        """`typing.NamedTuple`, as far as it is needed here, without the import of `typing`."""


class EnclosureError(ValueError):
    """A value from another process does not have the expected shape."""


class Limits(NamedTuple):
    """What a capsule may use; None is unlimited. `LIMITS` declares how each can be held."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    files: int | None = None
    """Open files per process."""
    disk_bytes: int | None = None
    output_bytes: int | None = None
    idle_s: float | None = None
    """How long a run may produce no output."""
    disk_root: str = ""
    """The directory whose contents count towards `disk_bytes`; set for each run."""

    def __bool__(self) -> bool:
        """Whether any limit is set."""
        return bool(self.by_field())

    @classmethod
    def of(cls, by_name: Mapping[str, float | None]) -> Limits:
        """From values by their names in settings; others, such as `time`, are ignored."""
        values = {kind.field: by_name.get(kind.name) for kind in LIMITS}
        return cls()._replace(**values)  # type: ignore[arg-type]

    def by_field(self) -> dict[str, float]:
        """The limits that are set."""
        values = {kind.field: getattr(self, kind.field) for kind in LIMITS}
        return {field: value for field, value in values.items() if value is not None}

    def watched_without(self, controllers: Container[str]) -> Limits:
        """Those that the minder has to watch where only these cgroup controllers work."""
        values = {
            kind.field: getattr(self, kind.field)
            for kind in LIMITS
            if kind.controller and kind.fallback == "watched" and kind.controller not in controllers
        }
        return Limits()._replace(**values)


class LimitKind(NamedTuple):
    """One limit, declared once: settings, project file, messages and keeper derive from it."""

    name: str
    """In settings."""
    field: str
    """In `Limits`, in the project file's model and in JSON: the name with its unit."""
    unit: str
    """`size`, `count`, `cpus` or `duration`, which say how it is written (`atoll.model.limits`)."""
    description: str
    """For the JSON schema and the reference."""
    default: float | None = None
    """At levels that have limits; None: a share of what the machine has."""
    share: float = 1.0
    """Of the machine's memory or processors."""
    lowest: float = 1
    """Of sizes, counts and cpus; durations have the bounds of `atoll.model.units`."""
    highest: float = 0
    """Of counts and cpus."""
    controller: str = ""
    """The cgroup controller that enforces it, where the host has one for us."""
    fallback: str = "watched"
    """Without that: `watched` by the minder, `enforced` otherwise, or `not enforced`."""
    uncounted: tuple[str, ...] = ()
    """What it does not include where it is watched."""


_SENT = "files sent over sockets"
_SMALLEST_BYTES = 1 << 20
"""The smallest limit of memory or disk with which a capsule can start."""
LIMITS = (
    LimitKind(
        "memory",
        "memory_bytes",
        "size",
        "Memory of all processes together, such as `4G`.",
        share=3 / 4,
        lowest=_SMALLEST_BYTES,
        controller="memory",
        uncounted=("pipes", "socket buffers", "System V IPC", _SENT),
    ),
    LimitKind(
        "cpus",
        "cpus",
        "cpus",
        "Processors' worth of time, such as `2` or `0.5`.",
        lowest=0.01,
        highest=1024,
        controller="cpu",
        fallback="not enforced",
    ),
    LimitKind(
        "pids",
        "pids",
        "count",
        "Processes and threads at one time.",
        default=4096,
        highest=1 << 22,  # as many as a kernel supports
        controller="pids",
    ),
    LimitKind(
        "files",
        "files",
        "count",
        "Files that one process may have open.",
        default=65_536,
        lowest=16,
        highest=1 << 20,
        fallback="enforced",
    ),
    LimitKind(
        "disk",
        "disk_bytes",
        "size",
        "Disk space that the capsule may use, such as `10G`.",
        default=50 << 30,
        lowest=_SMALLEST_BYTES,
        uncounted=(_SENT, "unmapped parts of unlinked files"),
    ),
    LimitKind(
        "output",
        "output_bytes",
        "size",
        "How much one run may write to its log, such as `100M`.",
        default=1 << 30,
    ),
    LimitKind(
        "idle",
        "idle_s",
        "duration",
        "How long a run may produce no output before it is stopped.",
        default=12 * 3600.0,
    ),
)
"""The limits of a capsule, in the order of `Limits` and of settings. The defaults are high enough
for any build, low enough to stop a runaway process before the host suffers."""
TIME_LIMIT = LimitKind(
    "time",
    "time_s",
    "duration",
    "How long one run may take, such as `2h` or `1h30m`.",
    default=24 * 3600.0,
)
"""A limit of each run at every level, which is stored with the capsule and not in `Limits`."""
SETTABLE_LIMITS = {kind.name: kind for kind in (*LIMITS, TIME_LIMIT)}
"""What settings can limit, by name."""
LIMITS_BY_FIELD = {kind.field: kind for kind in SETTABLE_LIMITS.values()}


class Bwrap(NamedTuple):
    """Walls built by bwrap around each command."""

    program: str
    root: str
    """The directory in which the holder has built the root that commands see."""
    options: tuple[str, ...]
    filter: bytes
    """The compiled seccomp filter."""
    uid: int | None
    """The user that commands run as, if that is not the owner."""
    workspace: str
    write: tuple[str, ...] = ()
    """Patterns of what can be written in the workspace; empty: all of it."""
    alone: bool = False
    """With a loopback of its own as its only network."""

    def narrowed_to(self, write: tuple[str, ...], *, alone: bool) -> Bwrap:
        return self._replace(write=write, alone=alone)


Walls = Bwrap
"""The isolation of a command: a union with one member per kind of launcher. Every member has
`uid` and `narrowed_to`; the rest is between its driver and its launcher."""


class Enclosure(NamedTuple):
    """How to start a process inside a capsule."""

    env: dict[str, str]
    """The whole environment."""
    cwd: str
    holder: str = ""
    """The directory in which the view's holder listens; empty: no view, started on the host."""
    walls: Walls | None = None
    limits: Limits | None = None
    """None: the process is not confined at all."""
    network: str = "host"
    """`host`, or the mode of the capsule's own: `none`, `allow` or `open`."""

    @property
    def has_view(self) -> bool:
        """Whether processes start in a private view rather than in the host's mounts."""
        return bool(self.holder)

    @property
    def has_walls(self) -> bool:
        return self.walls is not None

    @property
    def has_egress(self) -> bool:
        return self.network in ("allow", "open")

    def adding(self, variables: dict[str, str]) -> Enclosure:
        return self._replace(env={**self.env, **variables})


class Bind(NamedTuple):
    """A bind mount of a view."""

    source: str
    at: str
    is_read_only: bool = False


class Overlay(NamedTuple):
    """An overlay of a view. Layers are named relative to the view's pool, the lowest first."""

    lowers: tuple[str, ...]
    at: str
    options: str = ""
    upper: str = ""
    """Empty: read-only."""
    work: str = ""


class StoreOverlay(NamedTuple):
    """A copy-on-write overlay over one of the owner's package stores."""

    source: str
    lowers: tuple[str, ...]
    upper: str
    work: str
    options: str
    at: str


Mount = Bind | Overlay | StoreOverlay


class Directory(NamedTuple):
    at: str
    mode: int = 0o755


class Link(NamedTuple):
    at: str
    target: str


class TextFile(NamedTuple):
    at: str
    text: str


class Copy(NamedTuple):
    """A copy of the world-readable part of a small tree of the host."""

    at: str
    source: str


class Tmpfs(NamedTuple):
    at: str
    options: str


class Devpts(NamedTuple):
    at: str
    options: str


class PrivateTmpfs(NamedTuple):
    """A tmpfs that only the holder can write, for `atoll.keeper.private_files`; there is at most
    one.
    """

    at: str
    options: str


class Shown(NamedTuple):
    """A file or directory of the host or of the view, bound into the root."""

    at: str
    source: str
    is_read_only: bool = False
    is_shifted: bool = False
    """Shown as owned by the capsule's user."""
    is_fixed: bool = False
    """The directories above it cannot be renamed inside."""
    is_optional: bool = False
    """Skipped if the source is missing."""
    is_store: bool = False
    """Skipped if the source is missing, or if the capsule has its own package store there."""


RootEntry = Directory | Link | TextFile | Copy | Tmpfs | Devpts | PrivateTmpfs | Shown


class SandboxRoot(NamedTuple):
    """The whole tree that sandboxed processes see."""

    path: str
    """Where the holder builds it."""
    entries: tuple[RootEntry, ...]
    """In the order of building: what contains another entry comes first."""


class SharedStore(NamedTuple):
    """A package store of the owner that the capsule gets a copy-on-write view of."""

    name: str
    source: str
    hidden: tuple[str, ...]
    """Patterns of what is not shown."""


class View(NamedTuple):
    """A private mount namespace, as the holder builds it."""

    user: bool
    """With a user namespace: without root."""
    pool: str
    """The directory that the layers of overlays are relative to."""
    mounts: tuple[Mount, ...]
    network: str = "host"
    """`host`, or the mode of its own network: `none`, `allow` or `open`."""
    uid: int | None = None
    """The user that files are shown to belong to, if that is not the owner."""
    group: dict[str, str] = {}  # noqa: RUF012 - a tuple's default, never changed
    """The directories of the capsule's cgroup, by use (`atoll.keeper.groups`)."""
    root: SandboxRoot | None = None
    stores: tuple[SharedStore, ...] = ()
    """Package stores whose mounts are not planned yet."""


class HoldRequest(NamedTuple):
    """What a fork server gets to start the holder of a view."""

    view: View
    directory: str
    """Where the holder listens."""
    idle_s: float
    """How long it stays without use."""
    walls: Walls | None = None
    """Of every run, except the owner's own programs."""
    limits: Limits | None = None
    """Of every run."""
    monitor_dir: str = ""
    """The directory of the idle monitor; empty: the runs are not limited."""
    is_bound: bool = False
    """Ends with the fork server."""


class KeeperSpec(NamedTuple):
    """One run, as the engine writes it to `spec.json`. Strings hold bytes that are not UTF-8 as
    lone surrogates. A holder that an earlier version started reads it, too: the keys stay.
    """

    run: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    tty: bool
    rows: int
    cols: int
    foreground: bool
    stdin: str
    """`client` or `null`."""
    timeout_s: float | None
    grace_s: float
    log_limit_bytes: int
    hold_ports: tuple[int, ...]
    umask: int = 0o022
    walls: Walls | None = None
    limits: Limits | None = None

    @property
    def stdin_is_client(self) -> bool:
        return self.stdin == "client"


_KINDS: dict[str, dict[str, type[NamedTuple]]] = {
    "Walls": {"bwrap": Bwrap},
    "Mount": {"bind": Bind, "overlay": Overlay, "store": StoreOverlay},
    "RootEntry": {
        "directory": Directory,
        "link": Link,
        "file": TextFile,
        "copy": Copy,
        "tmpfs": Tmpfs,
        "devpts": Devpts,
        "private": PrivateTmpfs,
        "bind": Shown,
    },
}
"""The members of each union by the tag that is encoded as `kind`."""
_TAGS = {kind: tag for kinds in _KINDS.values() for tag, kind in kinds.items()}
_RECORDS = {kind.__name__: kind for kind in (Limits, SandboxRoot, SharedStore, View)}
_HIGHEST = 1e15


def encode(value: NamedTuple) -> dict[str, object]:
    """The fields of one of the values above, as JSON can express them."""
    tag = _TAGS.get(type(value))
    encoded: dict[str, object] = {} if tag is None else {"kind": tag}
    defaults = value._field_defaults
    for name, item in zip(value._fields, value, strict=True):
        if name not in defaults or item != defaults[name]:
            encoded[name] = _encoded(item)
    return encoded


def _encoded(value: object) -> object:
    if isinstance(value, tuple):
        is_record = hasattr(value, "_fields")
        return encode(value) if is_record else [_encoded(item) for item in value]  # type: ignore[arg-type]
    return value.hex() if isinstance(value, bytes) else value


def parse(kind: type[T], raw: object) -> T:
    """The value that `encode` made `raw` of. EnclosureError names the key that is wrong."""
    if not isinstance(raw, dict):
        raise EnclosureError(f"`{kind.__name__}` is not an object")
    unknown = sorted(raw.keys() - set(kind._fields))
    missing = sorted(set(kind._fields) - kind._field_defaults.keys() - raw.keys())
    if unknown or missing:
        raise EnclosureError(f"unknown keys {unknown}, missing keys {missing}")
    # `typing.NamedTuple`, which other modules may use, wraps annotations.
    kinds = {key: getattr(k, "__forward_arg__", k) for key, k in kind.__annotations__.items()}
    given = {key: _parsed(str(kinds[key]), value, key) for key, value in raw.items()}
    return kind._make({**kind._field_defaults, **given}[name] for name in kind._fields)


def _parsed(kind: str, value: object, key: str) -> object:
    """`kind` is the annotation of the field."""
    if kind.endswith(" | None"):
        return None if value is None else _parsed(kind.removesuffix(" | None"), value, key)
    if kind.startswith("tuple["):
        if not isinstance(value, list):
            raise EnclosureError(f"`{key}` is not a list")
        item = kind.removeprefix("tuple[").removesuffix(", ...]")
        return tuple(_parsed(item, entry, key) for entry in value)
    if kind in _KINDS:
        return _parsed_member(_KINDS[kind], value, key)
    if kind in _RECORDS:
        return parse(_RECORDS[kind], value)
    return _PLAIN[kind](value, key)


def _parsed_member(kinds: dict[str, type[NamedTuple]], value: object, key: str) -> object:
    tag = value.get("kind") if isinstance(value, dict) else None
    member = kinds.get(tag) if isinstance(tag, str) else None
    if not isinstance(value, dict) or member is None:
        raise EnclosureError(f"`{key}` is of unknown kind `{tag}`")
    return parse(member, {name: item for name, item in value.items() if name != "kind"})


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise EnclosureError(f"`{key}` is not a string")
    return value


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise EnclosureError(f"`{key}` is not true or false")
    return value


def _number(value: object, key: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not is_number or not 0 <= value < _HIGHEST:
        raise EnclosureError(f"`{key}` is not a number from 0")
    return value


def _whole(value: object, key: str) -> int:
    number = _number(value, key)
    if not isinstance(number, int):
        raise EnclosureError(f"`{key}` is not a whole number")
    return number


def _bytes(value: object, key: str) -> bytes:
    try:
        return bytes.fromhex(_text(value, key))
    except ValueError as error:
        raise EnclosureError(f"`{key}` is not hexadecimal") from error


def _texts_by_name(value: object, key: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise EnclosureError(f"`{key}` is not an object of strings")
    return value


_PLAIN = {
    "str": _text,
    "bool": _flag,
    "float": _number,
    "int": _whole,
    "bytes": _bytes,
    "dict[str, str]": _texts_by_name,
}
