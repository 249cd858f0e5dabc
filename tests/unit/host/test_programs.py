"""Which programs are started on the host."""

from __future__ import annotations

import os
import sys

import pytest

from atoll.host import programs
from atoll.host.programs import find_program, own_environment, require_program, trusted_path
from atoll.model.errors import PrerequisiteError


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory of the owner's with a program, which is all of PATH; and nothing distrusted."""
    monkeypatch.setattr(programs, "_untrusted", set())
    made = tmp_path / "tools"
    make_program(made / "tool")
    monkeypatch.setenv("PATH", str(made))
    return made


def make_program(path, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)


def test_the_system_comes_first(place):
    make_program(place / "sh")
    assert find_program("sh") in ("/usr/bin/sh", "/bin/sh", "/usr/local/bin/sh")
    assert find_program("sh", path=str(place)) == str(place / "sh")
    assert find_program("tool") == str(place / "tool")
    assert find_program("no-such-tool") is None


@pytest.mark.parametrize("name", ["", "./tool", "tools/tool", "../tools/tool", "a\0b", ".", ".."])
def test_a_name_is_a_name(place, monkeypatch, name):
    monkeypatch.chdir(place)
    assert find_program(name) is None


@pytest.mark.parametrize("path", ["", ".", ":", "tools", "./tools:"])
def test_no_relative_directory_is_searched(place, monkeypatch, path):
    monkeypatch.chdir(place.parent if "tools" in path else place)
    monkeypatch.setenv("PATH", path)
    assert find_program("tool") is None


def test_nothing_below_a_distrusted_directory(place):
    assert find_program("tool")
    assert find_program(str(place / "tool"))
    programs.distrust([place.parent])
    assert find_program("tool") is None
    assert find_program(str(place / "tool")) is None
    assert trusted_path(f"{place}:/usr/bin") == "/usr/bin"


def test_nothing_that_only_leads_there(place, tmp_path, monkeypatch):
    """Also not when a link there leads out again: an agent could change it."""
    project = tmp_path / "project"
    project.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.symlink(place / "tool", project / "tool")
    os.symlink(project / "tool", elsewhere / "tool")
    os.symlink(project, elsewhere / "way")
    monkeypatch.setenv("PATH", f"{elsewhere}:{elsewhere}/way")
    assert find_program("tool") == str(elsewhere / "tool")
    programs.distrust([project])
    assert find_program("tool") is None
    assert trusted_path(f"{elsewhere}/way:/bin") == "/bin"


def test_a_distrusted_link_counts_for_what_it_leads_to(place, tmp_path):
    os.symlink(place, tmp_path / "named")
    programs.distrust([tmp_path / "named"])
    assert find_program("tool") is None


def test_the_root_of_everything_cannot_be_distrusted(place):
    programs.distrust(["/"])
    assert find_program("sh")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o644, 0o000])
def test_no_program_that_others_can_write(place, mode):
    (place / "tool").chmod(mode)
    assert find_program("tool") is None


def test_no_directory_that_others_can_write(place):
    place.chmod(0o777)
    assert find_program("tool") is None
    # As in /tmp: others cannot replace what is not theirs.
    place.chmod(0o1777)
    assert find_program("tool") == str(place / "tool")


def test_no_program_of_another_user(place):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(place / "tool", 12345, 12345)
    assert find_program("tool") is None
    os.chown(place / "tool", 0, 12345)
    assert find_program("tool")
    (place / "tool").chmod(0o775)
    assert find_program("tool") is None


def test_no_directory_and_no_pipe(place):
    (place / "tool").unlink()
    (place / "tool").mkdir()
    assert find_program("tool") is None
    (place / "tool").rmdir()
    os.mkfifo(place / "tool", 0o755)
    assert find_program("tool") is None


def test_a_loop_of_links_ends(place):
    (place / "tool").unlink()
    os.symlink("tool", place / "tool")
    assert find_program("tool") is None
    assert not programs.is_trusted(str(place / "tool"), ())


def test_our_own_interpreter_is_trusted_wherever_it_is(place):
    programs.distrust([os.path.dirname(sys.executable)])
    assert require_program(sys.executable) == sys.executable
    with pytest.raises(PrerequisiteError, match="`tool2`"):
        require_program("tool2")


def test_the_environment_is_constant(place, monkeypatch):
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.setenv("TMPDIR", "tmp")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "project/config")
    monkeypatch.setenv("GIT_SSH_COMMAND", "evil")
    monkeypatch.setenv("LD_PRELOAD", "/evil.so")
    env = own_environment()
    assert not {"HOME", "TMPDIR", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND", "LD_PRELOAD"} & set(env)
    assert str(place) not in env["PATH"]
    assert {env["GIT_ALLOW_PROTOCOL"], env["GIT_NO_LAZY_FETCH"]} == {"none", "1"}
    monkeypatch.setenv("HOME", "/home/me")
    assert own_environment()["HOME"] == "/home/me"


def test_git_is_found_by_what_it_starts(place, monkeypatch):
    monkeypatch.setattr(programs, "SYSTEM_DIRECTORIES", ())
    make_program(place / "git")
    assert own_environment()["PATH"] == str(place)


def test_background_process_gets_places_and_no_credential(tmp_path):
    given = {
        "PATH": f"/usr/bin:{tmp_path}:/nowhere",
        "RUSTUP_HOME": str(tmp_path),
        "LC_ALL": "C",
        "ATOLL_DAEMON": "off",
        "ATOLL_PASSPHRASE": "secret",
        "API_KEY": "sk-secret",
        "AWS_SECRET_ACCESS_KEY": "/wJalrXUtnFEMI/K7MDENG",
        "DATABASE_URL": "postgres://u:secret@h/db",
        "EMPTY": "",
    }
    kept = programs.owner_settings(given)
    assert set(kept) == {"PATH", "RUSTUP_HOME", "LC_ALL", "ATOLL_DAEMON"}
