"""Where an owner has their home and their virtual environment: capsules start all the same."""

from __future__ import annotations

import pytest

from persons import as_both


@pytest.fixture
def activated(person):
    """The owner with the project's virtual environment active, as its `activate` sets it."""
    person.write({".gitignore": ".venv/\n"})
    person.commit("ignore the environment")
    venv = person.repo / ".venv"
    person.run("python3", "-m", "venv", "--without-pip", venv)
    person.env |= {"PATH": f"{venv}/bin:{person.env['PATH']}", "VIRTUAL_ENV": str(venv)}
    return person


@as_both
def test_with_the_projects_environment_active(activated):
    """HOME lies below `/tmp` here, as well: neither kept a capsule of root's from starting."""
    assert activated.env["HOME"].startswith("/tmp/")
    activated.atoll("new", "x")
    asked = ("python", "-c", "import sys; print(sys.prefix)")
    assert activated.atoll("run", "x", "--", *asked).stdout == f"{activated.repo}/.venv\n"
    # The capsule's own, not the owner's.
    activated.sh("x", ": > .venv/mine; : > ~/mine")
    assert not (activated.repo / ".venv/mine").exists()


@pytest.mark.parametrize("inside", ["tools", "home"])
@as_both
def test_with_a_place_on_path_that_is_a_capsules_own(activated, inside):
    """Programs in HOME or in the project itself, named on PATH before anything else."""
    place = activated.repo / "tools" if inside == "tools" else activated.place / "owner/bin"
    activated.write({"greet": "#!/bin/sh\necho hello\n"}, root=place)
    (place / "greet").chmod(0o755)
    activated.git("add", "--all")
    activated.git("commit", "--quiet", "--allow-empty", "-m", "tools")
    activated.env["PATH"] = f"{place}:{activated.env['PATH']}"
    activated.atoll("new", "x")
    assert activated.atoll("run", "x", "--", "greet").stdout == "hello\n"


@as_both
def test_with_a_virtual_environment_of_the_owners_on_path(person):
    """Its programs find the packages that are installed in it."""
    venv = person.place / "owner/tools"
    person.run("python3", "-m", "venv", "--without-pip", venv)
    [packages] = venv.glob("lib/python3.*/site-packages")
    (packages / "planted_module.py").write_text("x = 1\n")
    person.env["PATH"] = f"{venv}/bin:{person.env['PATH']}"
    person.atoll("new", "x")
    asked = ("python", "-c", "import sys, planted_module; print(sys.prefix)")
    assert person.atoll("run", "x", "--", *asked).stdout == f"{venv}\n"
