"""Odd files, names and repositories in a capsule: every verb of the owner ends, prints nothing
that steers a terminal, and reads or writes nothing outside.
"""

from __future__ import annotations

import os

import pytest

import hostile
from git_plants import PLANTS
from hostile import ENDINGS, LOOKS, as_both

owner = hostile.owner
PYTHON = hostile.SYSTEM_PYTHON
# Trees; SECRET is a directory of the owner's.
TREES = {
    "links": "ln -s SECRET/id_rsa key; ln -s SECRET ssh; ln -sf SECRET/id_rsa README.md; "
    "rm -r src; ln -s SECRET src; ln -s / root; ln -s loop loop; ln -s /proc/self/fd/0 stdin; "
    "ln -s /proc/1/root proc",
    "special": "rm README.md; mkfifo README.md pipe src/pipe; "
    f"{PYTHON} -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; "
    "rm -f .gitignore; mkfifo .gitignore .gitattributes .gitmodules atoll.toml .git/info/exclude",
    "names": "touch -- -rf --output=x '--upload-pack=x' ':(top)' '$(id)' '`id`' \"$(printf "
    "'a\\nb')\" \"$(printf 'a\\033]52;c;ZXZpbA==\\007b')\" \"$(printf '\\377\\376')\" "
    "\"$(printf '\\342\\200\\256gnp.exe')\"; mkdir -- '-C' ' '; touch -- '-C/x' ' / '; true",
    "modes": "echo x >locked; chmod 000 locked; mkdir shut; echo y >shut/y; chmod 000 shut; "
    "mkdir blind; echo z >blind/z; chmod 333 blind; chmod 0 README.md src",
    "deep": f"{PYTHON} -c 'import os\nfor _ in range(3000): os.mkdir(\"d\" * 50); "
    "os.chdir(\"d\" * 50)'",
    "hard-links": "for i in $(seq 500); do ln README.md l$i; done; ln .git/config c; "
    "ln /etc/passwd p 2>/dev/null; true",
    "overlay-marks": f"{PYTHON} -c 'import os\nfor n, v in ((\"redirect\", b\"/etc\"), (\"opaque\","
    " b\"y\"), (\"metacopy\", b\"\"), (\"origin\", b\"x\")):\n for p in (\".\", \"src\", \"docs\","
    " \"README.md\"):\n  try: os.setxattr(p, \"user.overlay.\" + n, v)\n  except OSError: pass'; "
    "touch .wh.README.md .wh..wh..opq",
    "git-is-a-link": "mv .git /tmp/git; ln -s /tmp/git .git",
    "git-is-a-file": "mv .git /tmp/git; echo 'gitdir: /tmp/git' >.git",
    "git-leads-out": "rm -rf .git; ln -s REPO/.git .git; ln -s SECRET/../.git x",
    "git-file-leads-out": "rm -rf .git; echo 'gitdir: SECRET/../repo/.git' >.git",
    "common-dir": "echo SECRET >.git/commondir; echo SECRET/x >.git/gitdir",
    "alternates": "cd .git/objects; mkdir -p info; "
    "printf 'SECRET\\n../../../../..\\n/proc/self/cwd\\n' "
    ">>info/alternates; echo SECRET >info/http-alternates",
    "odd-refs": "mkfifo .git/refs/heads/fifo; ln -s SECRET/id_rsa .git/refs/heads/link; "
    "mkdir -p .git/refs/heads/$(printf 'a\\033b'); printf 'ref: refs/heads/../../x\\n' "
    ">.git/refs/heads/up; for i in $(seq 3000); do git rev-parse HEAD >.git/refs/heads/r$i; done",
    "head-leads-out": "printf 'ref: refs/heads/../../../../SECRET/id_rsa\\n' >.git/HEAD",
    "head-is-a-pipe": "rm .git/HEAD; mkfifo .git/HEAD",
    "head-is-a-link": "rm .git/HEAD; ln -s SECRET/id_rsa .git/HEAD",
    "index-lies": f"{PYTHON} -c 'import struct; open(\".git/index\", \"wb\").write(b\"DIRC\" + "
    "struct.pack(\">II\", 2, 0xffffffff) + b\"x\" * 64)'",
    "objects-are-pipes": "rm -rf .git/objects/pack; mkfifo .git/objects/pack; "
    "mkdir -p .git/objects/11; mkfifo .git/objects/11/$(printf '1%.0s' $(seq 38))",
    "modules": "git config -f .gitmodules submodule.x.path ../../../SECRET; "
    "git config -f .gitmodules submodule.x.url 'ext::sh -c id'; "
    "git config -f .gitmodules submodule.../../y.path src; mkdir -p .git/modules; "
    "ln -s SECRET .git/modules/x",
    "work-tree": "git config core.worktree SECRET; git config core.bare false",
    "tree-names": "B=$(echo x | git hash-object -w --stdin); T=$( (for n in .. . .git ../x a/b; do "
    "printf '100644 %s\\0' $n; echo $B | xxd -r -p; done; git cat-file tree HEAD^{tree}) | "
    "git hash-object -w --literally -t tree --stdin); "
    "git update-ref HEAD $(git commit-tree $T -p HEAD -m x)",
}  # fmt: skip
QUICK = ("links", "special", "names", "modes", "git-leads-out", "overlay-marks")


def state_of(*roots):
    """Modes, sizes and times of all that lies below directories of the owner's."""
    found = {}
    for root in roots:
        for top, dirs, names in os.walk(root):
            if ".git" in dirs:
                dirs.remove(".git")
            for name in names:
                path = os.path.join(top, name)
                status = os.lstat(path)
                found[path] = (status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns)
    return found


def check_tree(owner, tree):
    script = TREES[tree].replace("SECRET", str(owner.secrets)).replace("REPO", str(owner.repo))
    plant = PLANTS["fsmonitor"][0].replace("RECORD", owner.recorder("planted"))
    owner.atoll("new", "x")
    before = state_of(owner.repo, owner.secrets)
    owner.inside(f"({plant}) 2>/dev/null; {script}", check=False)
    said = owner.look(*LOOKS, *ENDINGS)
    assert owner.token not in said
    assert state_of(owner.repo, owner.secrets) == before
    odd = [c for c in said if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    assert odd == []
    assert "\u202e" not in said
    assert owner.traces() == ""
    assert not owner.comes_out(f"{owner.token}\n")
    # The work is gone from the list, the home works, and what was stored holds no secret.
    assert owner.answer("ls") == []
    kept = owner.run("grep", "-rlsF", owner.token, owner.home, check=False).stdout
    assert [path for path in kept.split() if path.endswith("id_rsa")] == []
    owner.git("fsck", "--strict")
    for point in owner.answer("recover"):
        owner.look(("recover", point["id"], "--as", "again"))
    owner.look(("rm", "again", "--force"))
    assert state_of(owner.repo, owner.secrets) == before


@as_both
@pytest.mark.parametrize("tree", QUICK)
def test_odd_trees_lead_nowhere(owner, tree):
    check_tree(owner, tree)


@pytest.mark.soak
@pytest.mark.parametrize("tree", [name for name in TREES if name not in QUICK])
def test_more_odd_trees_lead_nowhere(owner, tree):
    check_tree(owner, tree)


def test_control_the_links_lead_to_the_secret(owner):
    """To a plain process of the owner's they do."""
    copy = owner.place / "control"
    owner.git("clone", "--quiet", owner.repo, copy)
    script = TREES["links"].replace("SECRET", str(owner.secrets))
    owner.run("bash", "-c", script, cwd=copy)
    assert owner.run("cat", "key", "src/id_rsa", cwd=copy).stdout.split() == [owner.token] * 2


@as_both
@pytest.mark.parametrize("option", ["--dirty", "--level=clone", "plain"])
def test_a_copied_workspace_is_no_project(owner, option):
    """F8: `cd "$(atoll path c)"; atoll new z` is refused, and runs nothing."""
    owner.atoll("new", "c", "--workspace", "copy")
    names = ("clean-filter", "fsmonitor", "hooks")
    plants = "".join(PLANTS[name][0].replace("RECORD", owner.recorder(name)) for name in names)
    # The agent's repository has all objects itself, so that it is one to the host as well.
    whole = "git repack -adq; rm -f .git/objects/info/alternates"
    owner.inside(f"{whole}\n{plants}rm -f {owner.ran}", "c")
    place = owner.atoll("path", "c").stdout.strip()
    words = () if option == "plain" else (option,)
    done = owner.atoll("new", "z", *words, cwd=place, check=False)
    assert owner.traces() == ""
    assert done.returncode in {2, 4}, done.stdout + done.stderr
    for verb in (("ls",), ("show", "--base"), ("init", "--dry-run"), ("warm",)):
        owner.atoll(*verb, cwd=place, check=False)
        owner.atoll(*verb, cwd=f"{place}/src", check=False)
    assert owner.traces() == ""
    # Control: git in that place does run them.
    owner.run("git", "-c", "safe.directory=*", "status", cwd=place, check=False)
    assert owner.traces() != ""


@as_both
def test_a_nested_repository_in_a_workspace_is_no_project(owner):
    """A sibling of F8: below the workspace, by `--project`, and through a link of the owner's."""
    owner.atoll("new", "c", "--workspace", "copy")
    plant = PLANTS["fsmonitor"][0].replace("RECORD", owner.recorder("fsmonitor"))
    owner.inside(f"git init -q sub; cd sub; git commit -q --allow-empty -m s; {plant}", "c")
    place = owner.atoll("path", "c").stdout.strip()
    owner.run("ln", "-s", f"{place}/sub", owner.outside / "link")
    for where in (f"{place}/sub", place, owner.outside / "link"):
        done = owner.atoll("--project", where, "new", "z", "--dirty", check=False)
        assert done.returncode in {2, 4}, done.stdout + done.stderr
    assert owner.traces() == ""
