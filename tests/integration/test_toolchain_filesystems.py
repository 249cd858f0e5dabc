"""A toolchain on a filesystem that has no ID-mapped mounts: root's capsules run all the same."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from atoll.keeper import calls
from persons import MS_PRIVATE, MS_REC

if os.geteuid() != 0:
    pytest.skip("only root's capsules have ID-mapped mounts", allow_module_level=True)

CONTROL = """
import os, sys
from atoll.keeper import calls, mounts
tree = calls.clone_mounts(sys.argv[1])
try:
    calls.change_mounts(tree, namespace=mounts._make_mapping(12345))
except OSError as error:
    print(error.errno)
"""


@pytest.fixture
def on_overlay(person):
    """`on_overlay(script)`: what a shell says of it where `tools` lies on an overlay."""
    places = {name: person.place / name for name in ("lower", "upper", "work", "tools")}
    for place in places.values():
        place.mkdir()
    modes = {"hello": 0o755, "closed": 0o700, "writable": 0o777}
    for name, mode in modes.items():
        person.write({f"bin/{name}": f"#!/bin/sh\necho {name}\n"}, root=places["lower"])
        (places["lower"] / "bin" / name).chmod(mode)
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format(**places)
    tools = places["tools"]

    def confined():
        calls.unshare(calls.CLONE_NEWNS)
        calls.mount("none", "/", "", MS_REC | MS_PRIVATE)
        calls.mount("overlay", str(tools), "overlay", 0, options)

    def run(script):
        env = {"PATH": f"{tools}/bin:{person.env['PATH']}", "PYTHON": sys.executable}
        return person.run("sh", "-euc", script, "sh", str(tools), confined=confined, env=env)

    return run


def test_a_toolchain_without_a_mapping(person, on_overlay):
    # All in one mount namespace: another one cannot speak to the capsule's holder.
    done = on_overlay("""
        atoll() { "$PYTHON" -m atoll "$@"; }
        atoll new -q x
        atoll run x -- hello
        atoll run x -- sh -c 'echo >> "$(command -v writable)"' || echo "not written"
        atoll run x -- closed || echo "code $?"
        atoll rm -q --force x
    """)
    assert done.stdout.splitlines() == ["x", "hello", "not written", "code 126", "x"], done
    assert "Read-only file system" in done.stderr
    assert "Permission denied" in done.stderr


def test_the_kernel_has_no_mapping_there(person, on_overlay):
    """The control: what the capsules would have asked for fails."""
    done = on_overlay(f'exec "$PYTHON" -c \'{CONTROL}\' "$1"')
    if not done.stdout:
        pytest.skip("this kernel has ID-mapped mounts of overlayfs")
    assert int(done.stdout) in (errno.EINVAL, errno.EPERM)
