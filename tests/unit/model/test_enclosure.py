"""Values that cross a process boundary: encoded and parsed without loss, and strictly."""

from __future__ import annotations

import json

import pytest

from atoll.model.enclosure import (
    LIMITS,
    Bind,
    Bwrap,
    Copy,
    Devpts,
    Directory,
    EnclosureError,
    HoldRequest,
    KeeperSpec,
    Limits,
    Link,
    Overlay,
    SandboxRoot,
    SharedStore,
    Shown,
    StoreOverlay,
    TextFile,
    Tmpfs,
    View,
    encode,
    parse,
)

WALLS = Bwrap(
    program="/usr/bin/bwrap", root="/mnt", options=("--proc", "/proc"), filter=b"\0\xff",
    uid=2_000_000_000, workspace="/w",
)  # fmt: skip
LIMITED = Limits(memory_bytes=1 << 30, cpus=0.5, idle_s=60.0, disk_root="/upper")
ROOT = SandboxRoot(
    "/mnt",
    (
        Directory("/proc"),
        Link("/var/run", "/run"),
        TextFile("/etc/hosts", "127.0.0.1 localhost\n"),
        Copy("/etc/fonts", "/etc/fonts"),
        Tmpfs("/run", "size=64m"),
        Devpts("/dev/pts", "newinstance"),
        Shown("/w", "/w", is_fixed=True),
    ),
)
VIEW = View(
    user=True,
    pool="/pool",
    mounts=(
        Bind("/a", "/b", is_read_only=True),
        Overlay(("l/tree",), "/state", "userxattr", upper="u/tree", work="u/work"),
        StoreOverlay("/home/x/.npm", ("l",), "u", "w", "volatile", "/stores/npm"),
    ),
    network="allow",
    uid=7,
    group={"memory": "/sys/fs/cgroup/x"},
    root=ROOT,
    stores=(SharedStore("npm", "/home/x/.npm", ("*.log",)),),
)
SPEC = KeeperSpec(
    run="0" * 16, argv=("true", "\udcff"), env={"A": "b"}, cwd="/w", tty=False, rows=24, cols=80,
    foreground=True, stdin="null", timeout_s=None, grace_s=5.0, log_limit_bytes=1 << 20,
    hold_ports=(8000,), walls=WALLS.narrowed_to(("src/**",), alone=True), limits=LIMITED,
)  # fmt: skip
HOLD = HoldRequest(VIEW, "/d", 60.0, WALLS, LIMITED, "/home/.atoll/idle", is_bound=True)


@pytest.mark.parametrize("value", [LIMITED, VIEW, SPEC, HOLD], ids=lambda v: type(v).__name__)
def test_encoding_loses_nothing(value):
    assert parse(type(value), json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rooms": 1}, "rooms"),
        ({"pool": None}, "pool"),
        ({"user": 1}, "user"),
        ({"uid": True}, "uid"),
        ({"uid": 1.5}, "uid"),
        ({"uid": -1}, "uid"),
        ({"mounts": {}}, "mounts"),
        ({"mounts": [{"kind": "loop", "at": "/x"}]}, "loop"),
        ({"mounts": [{"source": "/a", "at": "/x"}]}, "mounts"),
        ({"group": {"memory": 1}}, "group"),
        ({"root": []}, "SandboxRoot"),
    ],
)
def test_anything_else_is_refused(change, named):
    with pytest.raises(EnclosureError, match=named):
        parse(View, {**encode(VIEW), **change})


def test_missing_key_is_refused():
    encoded = encode(VIEW)
    del encoded["pool"]
    with pytest.raises(EnclosureError, match="pool"):
        parse(View, encoded)


@pytest.mark.parametrize("value", ["4G", 1.5, True])
def test_limits_are_whole_numbers(value):
    with pytest.raises(EnclosureError, match="memory_bytes"):
        parse(Limits, {"memory_bytes": value})


def test_every_limit_is_declared():
    fields = {*Limits._fields} - {"disk_root"}
    assert {kind.field for kind in LIMITS} == fields


def test_limits_by_their_names_in_settings():
    assert Limits.of({"memory": 5, "time": 60.0, "idle": None}) == Limits(memory_bytes=5)
    assert not Limits.of({"time": 60.0})
    assert Limits(memory_bytes=5, idle_s=1.0).by_field() == {"memory_bytes": 5, "idle_s": 1.0}


def test_narrowing_changes_nothing_else():
    narrowed = WALLS.narrowed_to(("a",), alone=True)
    assert narrowed._replace(write=(), alone=False) == WALLS
