"""The list of places that no capsule sees, and what toolchains are found besides."""

from __future__ import annotations

import os

import pytest

from atoll.drivers.isolation import toolchains
from atoll.drivers.isolation.hidden_paths import _PERSONAL, _SYSTEM, NeverShown
from atoll.host import programs


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_untrusted", set())
    made = tmp_path / "me"
    made.mkdir()
    return made


def owner(home, **variables):
    return {"HOME": str(home), **variables}


@pytest.mark.parametrize("name", _PERSONAL)
def test_a_private_place_and_what_it_holds_and_what_holds_it(home, name):
    never = NeverShown(owner(home))
    place = home / name
    assert never.why(str(place))
    assert never.why(str(place / "inner" / "bin"))
    for parent in place.parents:
        assert never.why(str(parent)), parent
    # As a control: another name beside it may be shown.
    assert never.why(f"{place}-tool/bin") is None


@pytest.mark.parametrize("place", [*_SYSTEM, "/", "/home", "/root", "/home/other", "/root/.x"])
def test_places_of_the_system(home, place):
    if place.startswith("/root") and os.path.expanduser("~").startswith("/root"):
        place = "/root"
    assert NeverShown(owner(home)).why(place)


@pytest.mark.parametrize("name", ["", ".local", ".local/share", ".local/lib", "go"])
def test_shared_parents(home, name):
    never = NeverShown(owner(home))
    assert never.why(os.path.normpath(f"{home}/{name}"))


@pytest.mark.parametrize("name", [
    ".pyenv", ".local/bin", ".local/share/uv/python", ".local/share/uv/tools", ".cargo/bin",
    ".rustup", ".nvm/versions", ".config/nvm/versions", "go/bin", ".local/share/claude/versions",
    ".claude/local", ".opencode/bin", ".amp/bin", ".local/share/cursor-agent/versions",
])  # fmt: skip
def test_programs_may_be_shown(home, name):
    assert NeverShown(owner(home)).why(str(home / name)) is None


def test_places_are_compared_without_links(home, tmp_path):
    real = tmp_path / "disk" / "keys"
    real.mkdir(parents=True)
    os.symlink(real, home / ".ssh")
    never = NeverShown(owner(home))
    assert never.why(str(real))
    assert never.why(str(real.parent))
    os.symlink(home, tmp_path / "by-another-name")
    found = toolchains.find(owner(home, JAVA_HOME=f"{tmp_path}/by-another-name/.ssh"))
    assert found.shown == ()
    assert "private directory" in found.refused[0]


def test_variables_name_private_places(home, tmp_path):
    kube = tmp_path / "elsewhere" / "kube"
    never = NeverShown(owner(home, KUBECONFIG=str(kube), CARGO_HOME=str(tmp_path / "cargo")))
    assert never.why(str(kube.parent))
    assert never.why(str(tmp_path / "cargo"))
    assert never.why(str(tmp_path / "cargo/bin")) is None


def test_projects_and_the_home_of_atoll(home, tmp_path):
    root = tmp_path / "project"
    place = root / ".venv/bin"
    place.mkdir(parents=True)
    given = owner(home, PATH=str(place), PYENV_ROOT=str(root))
    # As a control: it is shown where it is not known to be a project.
    assert [shown.at for shown in toolchains.find(given).shown] == [str(root), str(place)]
    found = toolchains.find(given, [str(root)])
    assert found.shown == ()
    assert len(found.refused) == 2
    programs.distrust([root])
    assert toolchains.find(given).shown == ()


def test_a_place_that_leads_into_a_project(home, tmp_path):
    """By a link, and by a name in a project that leads out."""
    root = tmp_path / "project"
    (root / "bin").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    os.symlink(root / "bin", home / "bin")
    os.symlink(tmp_path / "tools", root / "out")
    given = owner(home, PATH=f"{home}/bin:{root}/out")
    assert len(toolchains.find(given).shown) == 2
    assert toolchains.find(given, [str(root)]).shown == ()


def test_a_link_is_shown_where_the_owner_has_it(home, tmp_path):
    real = tmp_path / "disk" / "pyenv"
    real.mkdir(parents=True)
    os.symlink(real, home / ".pyenv")
    assert toolchains.find(owner(home)).shown == (
        toolchains.VisibleToolchain(at=f"{home}/.pyenv", source=str(real)),
    )


def test_what_lies_beside_programs(home, tmp_path):
    """Only if it belongs to an installation, and is not a user's own directory."""
    for name in ("one/bin", "one/lib", "one/share", "two/bin", "two/share", "two/letters"):
        (tmp_path / name).mkdir(parents=True)
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/share/x").mkdir(parents=True)
    path = f"{tmp_path}/one/bin:{tmp_path}/two/bin:{home}/.local/bin:relative/bin:"
    found = toolchains.find(owner(home, PATH=path))
    assert sorted(shown.at for shown in found.shown) == sorted([
        f"{tmp_path}/one/bin", f"{tmp_path}/one/lib", f"{tmp_path}/one/share",
        f"{tmp_path}/two/bin", f"{home}/.local/bin",
    ])  # fmt: skip


def test_the_file_that_makes_a_virtual_environment(home, tmp_path):
    """Only as a file of its own, beside programs that are shown with what belongs to them."""
    (home / "letter").write_text("private")
    for name in ("one", "linked", "mine"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "lib").mkdir()
    (tmp_path / "mine/letters").mkdir()
    (tmp_path / "one/pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "mine/pyvenv.cfg").write_text("home = /usr/bin\n")
    os.symlink(home / "letter", tmp_path / "linked/pyvenv.cfg")
    path = ":".join(f"{tmp_path}/{name}/bin" for name in ("one", "linked", "mine"))
    shown = [shown.at for shown in toolchains.find(owner(home, PATH=path)).shown]
    assert [at for at in shown if at.endswith(".cfg")] == [f"{tmp_path}/one/pyvenv.cfg"]
    assert toolchains.find(owner(home, PATH=path), [str(tmp_path / "one")]).shown
    inside = toolchains.find(owner(home, PATH=f"{tmp_path}/one/bin"), [str(tmp_path / "one")])
    assert inside.shown == ()


def test_the_checkout_is_not_read(home, tmp_path):
    root = tmp_path / "project"
    for name in ("py/bin", "py/lib/python3.11", ".venv"):
        (root / name).mkdir(parents=True)
    (root / ".venv/pyvenv.cfg").write_text(f"home = {root}/py/bin\n")
    (root / "py/bin/python3.11").write_text("")
    assert toolchains.find(owner(home), [str(root)]) == toolchains.Toolchains((), ())
