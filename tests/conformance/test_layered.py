"""Every driver with layers, on every filesystem on which it works, as root and as a user; and the
fake of them.
"""

from __future__ import annotations

import os
import sys

import pytest

from atoll.drivers.contracts import WorkspaceRequest
from atoll.drivers.layers.pool import Pool
from atoll.drivers.registry import LAYERED, layered_driver
from atoll.host.process import run
from atoll.model.errors import StateError
from atoll.testing.conformance.bench import BenchSuite
from atoll.testing.conformance.layered import LayeredSuite
from atoll.testing.conformance.layered_contract import LayeredContractSuite
from atoll.testing.fake_layers import FakeLayered
from atoll.testing.fakes import read_content
from present import present

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
        home = present(self.root) / "home"
        home.mkdir()
        problems = {name: layered_driver(name).check(home) for name in LAYERED}
        content = {name for name, found in problems.items() if not found}
        assert content == set(WORKS[self.where.filesystem]), problems  # type: ignore[attr-defined]
        assert all(f"driver `{name}`" in p.what for name, found in problems.items() for p in found)
        assert [path.name for path in home.iterdir()] == ["probes.json"]


@pytest.mark.quick
class TestFake(LayeredContractSuite):
    """Each call on an instance of its own: what one remembers, another finds on disk."""

    @pytest.fixture(autouse=True)
    def _project(self, tmp_path):
        self._place = tmp_path
        (tmp_path / "project").mkdir()
        (tmp_path / "project" / "README.md").write_text("# Sample\n")
        content = read_content(tmp_path / "project")
        self._commit = FakeLayered().record(str(tmp_path / "repository"), content)

    @property
    def made(self):
        return FakeLayered()

    @property
    def place(self):
        return self._place

    @property
    def atoll_home(self):
        return self._place / "home"

    def request(self, name):
        return WorkspaceRequest(
            name=name,
            repository=str(self._place / "repository"),
            checkout=str(self._place / "project"),
            base_commit=self._commit,
            path="",
            pool=str(self._place / "home" / "pools" / "project"),
            mode="fake",
        )

    def base_layers(self):
        request = self.request("base")
        return self.made.freeze(Pool(request.pool), request.repository, self._commit)

    def write(self, plan, name, data):
        self.made.write(plan, name, data)

    def remove(self, plan, name):
        self.made.remove(plan, name)

    def read(self, plan, name):
        return self.made.read(plan, name)

    def test_what_it_claims_is_also_true(self):
        """So that tests of the engine meet both answers."""
        with self.applied("claims") as [plan]:
            assert self.made.is_pristine(plan)
            assert not self.made.is_untouched(plan)
            now = self.made.seal(plan, busy=False).plan
            assert self.made.is_pristine(now)
            assert self.made.is_untouched(now)
            self.release(now)

    def test_base_commit_that_is_gone(self):
        with self.applied("lost") as [plan]:
            lost = plan._replace(base_commit="0" * 40)
            with pytest.raises(StateError):
                self.made.view(lost)


def test_suite_needs_no_pytest_to_be_imported():
    program = (
        "import sys; sys.modules['pytest'] = None; import atoll.testing.conformance.layered, "
        "atoll.testing.conformance.layered_contract, atoll.testing.fake_layers; "
        "print(sys.modules['pytest'])"
    )
    done = run((sys.executable, "-c", program), env={"PATH": os.environ["PATH"]})
    assert done.text == "None\n"
