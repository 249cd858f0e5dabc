from __future__ import annotations

import pytest

from atoll.drivers import registry
from atoll.drivers.contracts import ProbeResult
from atoll.engine.project import levels
from atoll.model.errors import AtollError, IsolationError, PrerequisiteError, SpecError
from atoll.model.state import Problem
from atoll.testing.fakes import FakeWorkspace

MISSING = ("container", "vm")


def test_spectrum_goes_from_no_wall_to_the_hardest():
    assert list(levels.NAMES) == ["none", "worktree", "clone", "sandbox", *MISSING]
    assert levels.DEFAULT == "sandbox"


@pytest.mark.parametrize("name", MISSING)
def test_level_that_does_not_exist_yet_is_refused(name, tmp_path):
    with pytest.raises(IsolationError) as caught:
        levels.require_level(name)
    assert caught.value.exit_code == 6
    assert f"`{name}`" in caught.value.message
    assert str(caught.value.hint).endswith("--level sandbox")
    level = next(level for level in levels.LEVELS if level.name == name)
    assert not level.exists
    assert levels.find_problems(level, tmp_path)


@pytest.mark.parametrize("name", ["none", "worktree", "clone"])
def test_level_that_works(name, tmp_path):
    level = levels.require_level(name)
    assert level.exists
    assert levels.find_problems(level, tmp_path) == []
    found = levels.require_drivers(level, tmp_path)
    assert found.isolation == level.isolation
    assert registry.workspace_driver(found.workspace).check(tmp_path) == []
    assert bool(found.mode) is (level.workspace == levels.LAYERS)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sanbox", "did you mean `sandbox`?"),
        ("Worktree", "did you mean `worktree`?"),
        ("zzz", "one of none, worktree, clone, sandbox, container, vm"),
        ("", "one of none, worktree, clone, sandbox, container, vm"),
    ],
)
def test_unknown_level_is_a_bad_request(name, hint):
    with pytest.raises(SpecError) as caught:
        levels.require_level(name)
    assert (caught.value.exit_code, caught.value.hint) == (2, hint)


def test_host_that_lacks_something_cannot_build_the_wall(monkeypatch, tmp_path):
    class Lacking(FakeWorkspace):
        def check(self, home):
            del home
            return [
                Problem(what="git is not installed", cure="apt-get install git"),
                Problem(what="the moon is not full"),
            ]

    monkeypatch.setattr(registry, "workspace_driver", lambda _: Lacking())
    with pytest.raises(IsolationError, match="git is not installed; the moon") as caught:
        levels.require_drivers(levels.require_level("worktree"), tmp_path)
    assert (caught.value.exit_code, caught.value.hint) == (6, "apt-get install git")


def test_every_level_says_what_it_does_and_does_not():
    for level in levels.LEVELS:
        assert all((level.isolates, level.shares, level.cost))


@pytest.mark.parametrize("find", [registry.workspace_driver, registry.isolation_driver])
def test_unknown_driver_is_a_prerequisite(find):
    with pytest.raises(PrerequisiteError, match="`nothing`"):
        find("nothing")
    with pytest.raises(AtollError):
        find("atoll.testing.fakes:FakeWorkspace")


@pytest.mark.parametrize("level", [level for level in levels.LEVELS if level.exists])
def test_drivers_know_their_own_names(level):
    names = registry.LAYERED if level.workspace == levels.LAYERS else [level.workspace]
    assert [registry.workspace_driver(name).name for name in names] == list(names)
    assert registry.isolation_driver(level.isolation).name == level.isolation


def test_layered_driver_is_probed_once(monkeypatch, tmp_path):
    probed = []

    class Layered:
        def __init__(self, name):
            self.name = name

        def probe(self, home):
            probed.append((self.name, home))
            works = self.name == registry.LAYERED[1]
            return ProbeResult("found", "works") if works else ProbeResult(None, "does not work")

    monkeypatch.setattr(registry, "layered_driver", Layered)
    level = levels.require_level("clone")
    found = levels.require_drivers(level, tmp_path)
    assert found == (registry.LAYERED[1], level.isolation, "found")
    assert probed == [(name, tmp_path) for name in registry.LAYERED[:2]]
    with pytest.raises(IsolationError) as caught:
        levels.require_drivers(level, tmp_path, wanted=registry.LAYERED[0])
    assert caught.value.hint == "atoll new NAME --workspace auto"
