"""What a project or an agent can do to become, or to widen, a toolchain that a capsule sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persons import as_both

SECRET = "the owner's own"


@pytest.fixture
def secret(person):
    """A directory in the owner's home, and the key in it."""
    person.write({".ssh/id_rsa": SECRET}, root=person.place / "owner")
    return person.place / "owner" / ".ssh"


def is_seen(person, name, path, **env):
    done = person.atoll("run", name, "--", "cat", str(path), check=False, env=env)
    return SECRET in done.stdout


@as_both
def test_a_cloned_environment_shows_nothing(person, secret):
    """E2: `.venv/pyvenv.cfg` names an interpreter of the project's, with links beside it."""
    owner = person.place / "owner"
    files = {
        ".venv/pyvenv.cfg": "home = py/bin\n",
        "py/bin/python3.11": "#!/bin/sh\n",
        "py/lib/python3.11/os.py": "",
        "venv/pyvenv.cfg": f"home = {person.repo}/py/bin\n",
        "env/pyvenv.cfg": f"home = {person.repo}/var/bin\n",
        "var/lib/python3.11/os.py": "",
    }
    person.write(files)
    (person.repo / "py/bin/python3.11").chmod(0o755)
    links = {"py/share": "/", "py/include": str(owner), "var/bin": "/usr/bin", "var/share": "/"}
    for name, target in links.items():
        os.symlink(target, person.repo / name)
    person.git("add", "--all")
    person.git("commit", "-q", "-m", "hostile")
    person.atoll("new", "x")
    paths = ("py/include/.ssh/id_rsa", f"py/share{secret}/id_rsa", f"var/share{secret}/id_rsa")
    for path in paths:
        # As a control: for the owner, the same name leads to the key.
        assert SECRET in (person.repo / path).read_text()
        assert not is_seen(person, "x", path)
    assert not is_seen(person, "x", secret / "id_rsa")
    places = person.answer("show", "x")["visible"]
    assert not [place for place in places if place.startswith(str(person.repo))]


@as_both
def test_an_active_environment_of_the_project_shows_nothing(person, secret):
    """E3: a first run puts links in the place of the directories that PATH leads to."""
    person.write({".gitignore": ".venv\n", ".venv/bin/tool": "#!/bin/sh\necho tool\n"})
    (person.repo / ".venv/bin/tool").chmod(0o755)
    for name in ("lib", "lib64", "include"):
        (person.repo / ".venv" / name).mkdir()
    person.atoll("new", "x")
    person.sh("x", f"""
        rm -rf .venv; mkdir .venv; ln -s /usr/bin .venv/bin; ln -s /usr/lib .venv/lib
        ln -s /usr/lib .venv/lib64; ln -s {secret} .venv/include
    """)  # fmt: skip
    person.atoll("snapshot", "x")
    active = {"PATH": f"{person.repo}/.venv/bin:{person.env['PATH']}",
              "VIRTUAL_ENV": f"{person.repo}/.venv", "JAVA_HOME": f"{person.repo}/.venv/include",
              "PYENV_ROOT": f"{person.repo}/.venv"}  # fmt: skip
    assert not is_seen(person, "x", ".venv/include/id_rsa", **active)
    assert not is_seen(person, "x", secret / "id_rsa", **active)
    # Its own programs are still found there, in its own files.
    found = person.atoll("run", "x", "--", "sh", "-c", "command -v ls", env=active).stdout
    assert found == f"{person.repo}/.venv/bin/ls\n"
    # As a control: links of the owner's are followed, to places that may be shown.
    tools = person.place / "tools"
    person.write({"bin/hello": "#!/bin/sh\necho hello\n"}, root=tools)
    (tools / "bin/hello").chmod(0o755)
    os.symlink(tools / "bin", person.place / "owner" / "link")
    path = {"PATH": f"{person.place}/owner/link:{person.env['PATH']}"}
    person.atoll("new", "y", env=path)
    assert person.atoll("run", "y", "--", "hello", env=path).stdout == "hello\n"


HIDDEN = (
    ".local/share/keyrings/login.keyring", ".local/share/fish/fish_history",
    ".local/share/other/token", ".local/state/history", ".local/share/uv/credentials/token",
    ".config/gh/hosts.yml", ".cargo/credentials.toml", ".claude/.credentials.json",
    ".codex/auth.json", "Documents/letter", ".dotnet/corefx/cryptography/key", ".cache/x",
)  # fmt: skip
SHOWN = (
    ".local/bin/tool", ".local/share/uv/tools/one/bin/tool", ".local/share/uv/python/cp/bin/tool",
    ".local/share/pipx/venvs/one/bin/tool", ".cargo/bin/tool", ".dotnet/tools/tool",
    ".nvm/versions/node/v1/bin/tool", ".rustup/toolchains/stable/bin/tool",
)  # fmt: skip


@as_both
def test_an_installation_below_local_share_opens_nothing(person):
    """E5: `~/.local/bin` on PATH, and whatever else lies beside it."""
    owner = person.place / "owner"
    person.write(dict.fromkeys((*HIDDEN, *SHOWN), SECRET), root=owner)
    bins = [f"{owner}/{os.path.dirname(name)}" for name in SHOWN]
    odd = [str(owner), f"{owner}/.local", f"{owner}/.local/share", f"{owner}/.dotnet",
           f"{owner}/.config", "/home", "/root", "/var", "/etc", "/", str(person.home)]  # fmt: skip
    person.env["PATH"] = ":".join([person.env["PATH"], *bins, *odd])
    person.env["JAVA_HOME"] = str(owner)
    person.env["XDG_DATA_HOME"] = f"{owner}/.local/share"
    person.atoll("new", "x")
    script = "".join(f"echo '{name}'; cat '{owner}/{name}'; echo\n" for name in (*SHOWN, *HIDDEN))
    told = person.sh("x", f"set +e\n{script}true").splitlines()
    seen = [told[i - 1] for i, line in enumerate(told) if line == SECRET]
    assert sorted(seen) == sorted(SHOWN)
    everything = person.sh("x", f"ls {person.home} 2> /dev/null || true").split()
    assert set(everything) <= {"pools"}
    # As a control: to the owner all of it is there.
    assert all((owner / name).read_text() == SECRET for name in HIDDEN)


def test_an_odd_place_of_a_project_shows_no_other(person):
    """A project in a directory that is shown as a whole, such as `/opt`, is not shown with it."""
    if os.geteuid() != 0:
        pytest.skip("only root can write to /opt")
    place = Path("/opt") / f"atoll-test-{os.urandom(4).hex()}"
    place.mkdir()
    try:
        other = place / "other"
        person.run("git", "clone", "-q", person.repo, other, cwd=place)
        person.write({"key": SECRET}, root=other)
        (place / "plain").write_text(SECRET)
        person.atoll("new", "z", cwd=other, env={"ATOLL_LEVEL": "worktree"})
        person.atoll("new", "x")
        assert not is_seen(person, "x", other / "key")
        person.atoll("rm", "z", "--force", cwd=other)
        assert is_seen(person, "x", place / "plain")
    finally:
        person.run("rm", "-rf", place, cwd=person.place)
