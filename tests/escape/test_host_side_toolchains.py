"""Which of the owner's files become visible inside, and whose programs are started outside.

Nothing that a repository or an agent wrote decides about either.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

import hostile
from hostile import as_both

owner = hostile.owner
VERSION = f"python3.{sys.version_info[1]}"


def see(owner, name, *paths):
    """What a capsule reads at paths, whose links the kernel follows inside."""
    words = " ".join(shlex.quote(str(path)) for path in paths)
    script = f'for p in {words}; do cat "$p"; ls "$p" "$p"/*; done 2>/dev/null; true'
    return owner.inside(script, name)


def add_prefix(owner, root, *, links):
    """An interpreter's prefix below a repository, whose parts lead elsewhere."""
    owner.write({"lib/" + VERSION + "/os.py": "", "bin/" + VERSION: "#!/bin/sh\n"}, root)
    (root / "bin" / VERSION).chmod(0o755)
    for name, target in links.items():
        (root / name).symlink_to(target)


def clone_hostile(owner, links):
    """A repository whose virtual environment leads to an interpreter of its own, committed."""
    add_prefix(owner, owner.repo / "py", links=links)
    owner.write({
        ".venv/pyvenv.cfg": "home = py/bin\n",
        "venv/pyvenv.cfg": f"home = {owner.repo}/py/bin\n",
        "env/pyvenv.cfg": f"home = {owner.repo}/src/../py/bin\n",
    })  # fmt: skip
    owner.git("add", "--all", "--force")
    owner.commit("hostile")


@as_both
def test_a_cloned_repository_shows_nothing_of_the_home(owner):
    """E2: `pyvenv.cfg` and links that came with a repository."""
    home = owner.secrets.parent
    clone_hostile(owner, {"include": home, "libexec": owner.secrets})
    assert (owner.repo / "py/include/.ssh/id_rsa").read_text().strip() == owner.token
    owner.atoll("new", "x")
    paths = ("py/include/.ssh/id_rsa", "py/libexec/id_rsa", owner.secrets / "id_rsa")
    assert owner.token not in see(owner, "x", *paths)


@as_both
def test_a_cloned_repository_shows_nothing_of_the_machine(owner):
    """E2: a link to `/` leads to the capsule's own control socket, which starts anything."""
    clone_hostile(owner, {"share": "/"})
    assert (owner.repo / f"py/share{owner.secrets}/id_rsa").read_text().strip() == owner.token
    owner.atoll("new", "x")
    seen = see(owner, "x", f"py/share{owner.secrets}/id_rsa", "py/share/root", "py/share/var")
    assert owner.token not in seen
    assert "py/share/var/lib" not in seen
    sockets = owner.inside(f"find -L py/share{owner.home} -type s 2>/dev/null; true")
    assert sockets == ""


@as_both
def test_relative_prefixes_are_not_resolved_anywhere(owner):
    """E2 as root: `home = var/bin` was found in the checkout and bound from `/`."""
    for name, top in ((".venv", "var"), ("venv", "home"), ("env", "../repo/opt")):
        root = owner.repo / Path(top).name
        owner.write({f"lib/{VERSION}/os.py": "", "share/x": "", "include/y": ""}, root)
        (root / "bin").symlink_to("/usr/bin")
        owner.write({f"{name}/pyvenv.cfg": f"home = {top}/bin\n"})
    owner.git("add", "--all", "--force")
    owner.commit("hostile")
    owner.atoll("new", "x")
    # Control: the machine has something there to be seen.
    assert "dpkg" in owner.run("ls", "/var/lib").stdout
    assert "dpkg" not in owner.inside("ls /var/lib; true")


@as_both
def test_a_venv_on_the_path_shows_only_itself(owner):
    """E3: the first run replaces parts of the venv by links; the next has the venv active."""
    owner.write({".venv/bin/tool": "#!/bin/sh\n", ".venv/lib/x": "", ".venv/include/y": ""})
    active = {"PATH": f"{owner.repo}/.venv/bin:{owner.env['PATH']}",
              "VIRTUAL_ENV": f"{owner.repo}/.venv"}  # fmt: skip
    owner.atoll("new", "x")
    owner.inside(
        f"rm -rf .venv; mkdir .venv; ln -s /usr/bin .venv/bin; ln -s /usr/lib .venv/lib;"
        f"ln -s /usr/lib .venv/lib64; ln -s {owner.secrets} .venv/include;"
        f"ln -s {owner.secrets.parent} .venv/share; ln -s / .venv/libexec"
    )
    words = ["cat", ".venv/include/id_rsa", ".venv/share/.ssh/id_rsa",
             f".venv/libexec{owner.secrets}/id_rsa", owner.secrets / "id_rsa"]  # fmt: skip
    owner.atoll("snapshot", "x")
    for _ in range(2):
        done = owner.atoll("run", "x", "--", *words, env=active, check=False)
        assert owner.token not in done.stdout + done.stderr
        # The owner's own checkout may have become like that, too: by `export` and a checkout.
        owner.run("sh", "-c", f"rm -rf .venv/include; ln -s {owner.secrets} .venv/include")
    assert owner.run("cat", ".venv/include/id_rsa").stdout.strip() == owner.token


@as_both
def test_toolchain_variables_below_the_project_are_not_believed(owner):
    """A sibling of E3: `direnv` and the like set roots to directories of a repository."""
    owner.write({"tools/shims/run": "#!/bin/sh\n", "node/x": ""})
    for name in ("versions", "libexec"):
        (owner.repo / "tools" / name).symlink_to(owner.secrets)
    (owner.repo / "java").symlink_to(owner.secrets)
    owner.git("add", "--all", "--force")
    owner.commit("hostile")
    owner.atoll("new", "x")
    roots = {"PYENV_ROOT": f"{owner.repo}/tools", "NVM_DIR": f"{owner.repo}/node",
             "JAVA_HOME": f"{owner.repo}/java", "GOROOT": f"{owner.repo}/tools/versions",
             "PATH": f"{owner.repo}/tools/shims:{owner.env['PATH']}"}  # fmt: skip
    words = ("cat", "tools/versions/id_rsa", "tools/libexec/id_rsa", "java/id_rsa")
    assert owner.token in owner.run(*words, env=roots).stdout
    done = owner.atoll("run", "x", "--", *words, env=roots, check=False)
    assert owner.token not in done.stdout + done.stderr


PRIVATE = (
    "keyrings/login.keyring", "fish/fish_history", "atuin/history.db", "mise/trusted-configs/x",
    "uv/credentials/token", "pipx/shared/secret", "other-tool/auth.json", "recently-used.xbel",
)  # fmt: skip


@as_both
@pytest.mark.parametrize("place", ["chosen", "usual"])
def test_an_installed_tool_does_not_open_its_surroundings(owner, place):
    """E5: as `pipx install` and `uv tool install` lay it out, with `~/.local/bin` on PATH."""
    home = owner.secrets.parent
    share = home / ".local/share"
    owner.write(dict.fromkeys(PRIVATE, f"{owner.token}\n"), share)
    owner.write({"bin/tool": "#!/bin/sh\n", "state/x/history": owner.token}, home / ".local")
    env = {"PATH": f"{home}/.local/bin:{owner.env['PATH']}"}
    if place == "usual":
        env["ATOLL_HOME"] = str(share / "atoll")
    installed = install_like_uv(owner, share / "uv/tools/atoll")
    owner.run("ln", "-s", installed, home / ".local/bin/python-of-atoll")
    words = [share / name for name in PRIVATE]
    words += [home / ".local/state/x/history", owner.secrets / "id_rsa"]
    assert owner.token in owner.run("cat", *words).stdout
    owner.run(installed, "-m", "atoll", "new", "x", env=env)
    try:
        done = owner.run(
            installed, "-m", "atoll", "run", "x", "--", "sh", "-c",
            'cat "$@" 2>/dev/null; ls -a "$0" "$0/atoll"; true', share, *words, env=env,
        )  # fmt: skip
        assert owner.token not in done.stdout
        assert "state.db" not in done.stdout
        assert "keyrings" not in done.stdout
    finally:
        owner.run(installed, "-m", "atoll", "rm", "x", "--force", env=env, check=False)


def install_like_uv(owner, venv):
    """The interpreter of a virtual environment with the package under test."""
    owner.run(sys.executable, "-m", "venv", "--without-pip", venv)
    where = "import atoll, click; print(*atoll.__path__, *click.__path__, sep='\\n')"
    found = owner.run(*interpreter(), "-c", where).stdout.splitlines()
    packages = "\n".join(str(Path(path).parent) for path in found)
    owner.write({"atoll.pth": packages}, venv / "lib" / VERSION / "site-packages")
    return venv / "bin/python"


def interpreter():
    """The interpreter of the installation under test."""
    if not hostile.UNDER_TEST:
        return [sys.executable]
    return [Path(hostile.UNDER_TEST).with_name("python")]


PROGRAMS = ("cp", "unshare", "git", "tar", "rsync", "mv", "rm", "chmod", "find", "sh", "bwrap",
            "python3", "python", "mount", "umount", "env", "setfacl", "newuidmap")  # fmt: skip


REMOVALS = (("show", "x"), ("diff", "x"), ("snapshot", "x"), ("fork", "x", "y"),
            ("rm", "y", "--force"), ("rm", "x"), ("rm", "x", "--force"), ("gc",))  # fmt: skip


@as_both
def test_removal_starts_nothing_planted(owner):
    """E4: the fallback of `rm --force` used the capsule's PATH; so might any other verb."""
    owner.write({".venv/bin/tool": "#!/bin/sh\n"})
    bins = ".venv/bin"
    plant = "".join(
        f"printf '#!/bin/sh\\n{owner.recorder(name)}\\nexit 1\\n' >{bins}/{name};"
        f"chmod 755 {bins}/{name};" for name in PROGRAMS
    )  # fmt: skip
    owner.atoll("new", "x", "-n", "2")
    script = (
        f"mkdir -p {bins} ~/bin ~/.local/bin;{plant} cp {bins}/* ~/.local/bin; cp {bins}/* ~/bin;"
        "echo x >locked; chmod 000 locked; git init -q nested; echo y >nested/y; mv src moved;"
        f'{hostile.SYSTEM_PYTHON} -c \'import os; os.setxattr("/tmp", "user.overlay.redirect",'
        " b\"/etc\")' 2>/dev/null; printf '%s' x >README.md; true"
    )
    for name in ("x-1", "x-2"):
        owner.inside(script, name)
    path = f"{owner.repo}/{bins}:{owner.env['PATH']}"
    # Control: by the same PATH a planted program starts.
    owner.run("sh", "-c", f"{plant} true")
    owner.run("cp", check=False, env={"PATH": path})
    assert owner.traces() == "cp\n"
    owner.run("/bin/rm", "-rf", bins, owner.ran)
    owner.write({".venv/bin/tool": "#!/bin/sh\n"})
    # One is removed at once; the other is looked at before.
    looks = [tuple(word.replace("x", "x-2") if len(word) == 1 else word for word in words)
             for words in REMOVALS]  # fmt: skip
    for words in (("rm", "x-1", "--force"), *looks):
        owner.atoll(*words, env={"PATH": path}, check=False)
    assert owner.traces() == ""


@as_both
def test_a_tracked_program_is_not_started(owner):
    """A sibling of E4: the venv of a hostile repository is active while Atoll looks for git."""
    for name in PROGRAMS:
        owner.write({f".venv/bin/{name}": f"#!/bin/sh\n{owner.recorder(name)}\nexit 1\n"})
        (owner.repo / ".venv/bin" / name).chmod(0o755)
    path = f"{owner.repo}/.venv/bin:{owner.env['PATH']}"
    owner.run("git", check=False, env={"PATH": path})
    assert owner.traces() == "git\n"
    owner.ran.unlink()
    for words in (("new", "x"), ("run", "x", "--", "true"), *REMOVALS):
        owner.atoll(*words, env={"PATH": path}, check=False)
    assert owner.traces() == ""
    # It was not the refusal of everything.
    owner.atoll("new", "z", env={"PATH": path})


@as_both
def test_an_editor_session_starts_nothing_planted(owner):
    """M6: `atoll edit` runs the owner's programs where the agent's files are."""
    owner.write({".venv/bin/tool": "#!/bin/sh\nexit 0\n"})
    (owner.repo / ".venv/bin/tool").chmod(0o755)
    owner.atoll("new", "x")
    plant = (
        f"git config core.fsmonitor '{owner.recorder('fsmonitor')}; false';"
        f"git config filter.e.clean '{owner.recorder('filter')}; cat';"
        f"git config core.pager '{owner.recorder('pager')}'; git config alias.st status;"
        f"git config diff.external '{owner.recorder('external')}';"
        "mkdir -p .git/info; echo 'README.md filter=e' >.git/info/attributes;"
        "printf '# Sampel\\n' >README.md; touch -d '+20 sec' README.md;"
    )
    planted_program = (
        f"mkdir -p .venv/bin; printf '#!/bin/sh\\n{owner.recorder('program')}\\n' >.venv/bin/tool;"
        "chmod 755 .venv/bin/tool; cp .venv/bin/tool .venv/bin/git"
    )
    owner.inside(plant + planted_program)
    copy = control_copy(owner)
    owner.run("bash", "-c", plant, cwd=copy)
    owner.run("git", "status", cwd=copy)
    assert {"fsmonitor", "filter"} <= set(owner.traces().split())
    owner.ran.unlink()
    path = f"{owner.repo}/.venv/bin:{owner.env['PATH']}"
    active = {"PATH": path, "VIRTUAL_ENV": f"{owner.repo}/.venv"}
    owner.atoll("edit", "x", "--", "git", "status", check=False)
    owner.atoll("edit", "x", "--", "git", "diff", check=False)
    owner.atoll("edit", "x", "--", "sh", "-c", "git status; git add .", check=False)
    assert owner.traces() == ""
    owner.atoll("edit", "x", "--", "tool", check=False, env=active)
    owner.atoll("edit", "x", "--", "git", "status", check=False, env=active)
    owner.atoll("edit", "x", "--", "sh", "-c", "tool; git status", check=False, env=active)
    assert owner.traces() == ""


def control_copy(owner):
    """A plain clone on the host, in which a plant is a plant."""
    copy = owner.place / "control"
    owner.git("clone", "--quiet", "--no-hardlinks", owner.repo, copy)
    return copy


def test_the_token_is_a_real_secret(owner):
    """Control of this module: only the owner's processes can read the file."""
    mode = os.stat(owner.secrets / "id_rsa").st_mode
    assert mode & 0o077 == 0
    assert owner.run("cat", owner.secrets / "id_rsa").stdout.strip() == owner.token
