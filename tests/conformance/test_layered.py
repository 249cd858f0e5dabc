"""Every driver with layers, on every filesystem on which it works, as root and as a user."""

from __future__ import annotations

import os
import sys

import pytest

from atoll.drivers.registry import LAYERED, layered_driver
from atoll.host.process import run
from atoll.testing.conformance.bench import BenchSuite
from atoll.testing.conformance.layered import LayeredSuite

USERS = ("root", "user")
WORKS = {
    "ext4": ("overlay", "copy"),
    "xfs": ("overlay", "reflink", "copy"),
    "btrfs": ("overlay", "btrfs", "reflink", "copy"),
}

# Each driver where it is chosen, and each filesystem with what it does by itself; the rest differs
# in nothing that these do not try.
TRIED = [
    *[("ext4", who, driver) for driver in ("overlay", "copy") for who in USERS],
    *[("xfs", "user", "overlay"), ("xfs", "root", "reflink"), ("xfs", "user", "reflink")],
    *[("ext4", who, "overlay", "sandbox") for who in USERS],
    *[("btrfs", "root", "overlay"), ("btrfs", "root", "btrfs"), ("btrfs", "user", "btrfs")],
]

# Both halves of these are tried by another one, too: root without walls, and a user behind them.
RARE = [("ext4", "root", "copy"), ("ext4", "root", "overlay", "sandbox")]


def stages(cases, *, quick=lambda _: True, common=lambda _: True):
    """Each has a process of its own; those that are not `quick` wait for the whole test run, and
    those that are not `common` for a soak.
    """

    def marks(case):
        if not common(case):
            return pytest.mark.soak
        return () if quick(case) else pytest.mark.slow

    made = [pytest.param(case, id="-".join(case), marks=marks(case)) for case in cases]
    return pytest.mark.parametrize("stage", made, indirect=True, scope="class")


@pytest.mark.usefixtures("stage")
@stages(
    TRIED,
    quick=lambda case: case in [("ext4", who, "overlay") for who in USERS],
    common=lambda case: case[0] == "ext4" and case not in RARE,
)
class TestLayered(LayeredSuite):
    """Performed on a stage: see `conftest.py`."""


@pytest.mark.usefixtures("stage")
@stages((kind, who) for kind in WORKS for who in USERS)
class TestChecks(BenchSuite):
    """A driver says of itself where it cannot work, after trying."""

    def test_drivers_know_where_they_work(self):
        home = self.root / "home"
        home.mkdir()
        problems = {name: layered_driver(name).check(home) for name in LAYERED}
        content = {name for name, found in problems.items() if not found}
        assert content == set(WORKS[self.where.filesystem]), problems  # type: ignore[attr-defined]
        assert all(f"driver `{name}`" in p.what for name, found in problems.items() for p in found)
        assert [path.name for path in home.iterdir()] == ["probes.json"]


def test_suite_needs_no_pytest_to_be_imported():
    program = "import sys; sys.modules['pytest'] = None; import atoll.testing.conformance.layered"
    run((sys.executable, "-c", program), env={"PATH": os.environ["PATH"]})
