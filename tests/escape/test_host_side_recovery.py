"""Recovery points say what Atoll knows, never what an agent wrote, and losing the store does not
make the agent's repository trusted.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

import pytest

import hostile
import persons
from git_plants import PLANTS
from hostile import as_both

owner = hostile.owner
# A header of the commit that the agent's encoding begins, in the code page that it names: to a
# reader who converts it, this is all that is legible.
EBCDIC = (
    "\ncommitter a <a@b> 3976214400 +0000\n\natoll: recovery point victim/1\n\n"
    "Atoll-Capsule: victim\nAtoll-Index: --index-output=TARGET\nAtoll-Files: FILES\n"
)
PLAIN_LINES = (
    "Atoll-Capsule: victim\nAtoll-Index: --index-output=TARGET\nAtoll-Base: --output=TARGET\n"
    "Atoll-Head: --output=TARGET\nAtoll-Files: FILES\nAtoll-Time: 3976214400\n"
)
# A configuration file is written by a program, because no shell passes these bytes unharmed.
CONFIGURE = """
import pathlib
path = pathlib.Path(".git/config")
path.write_bytes(path.read_bytes() + {text!r})
pathlib.Path("work.txt").write_text("work of x\\n")
"""


def configuration(kind, target, files):
    """What the agent adds to its `.git/config`, by which commits say something else."""
    legible = EBCDIC.replace("TARGET", str(target)).replace("FILES", files).encode("cp037")
    legible = legible.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    text = PLAIN_LINES.replace("TARGET", str(target)).replace("FILES", files)
    quoted = text.replace("\n", "\\n").replace('"', '\\"')
    # Git's configuration knows no escape for ESC: the byte itself is written.
    return {
        "illegible": b"[i18n]\n\tcommitEncoding = IBM037\n",
        "ebcdic": b'[i18n]\n\tcommitEncoding = "IBM037\\n%s"\n' % legible,
        "header": f'[i18n]\n\tcommitEncoding = "x\\n\\n{quoted}"\n'.encode(),
        "utf-16": b"[i18n]\n\tcommitEncoding = UTF-16\n\tlogOutputEncoding = UTF-16\n",
        "utf-7": b"[i18n]\n\tcommitEncoding = UTF-7\n[user]\n\tname = \"+AAo-x+AAo-\"\n",
        "output": b"[i18n]\n\tlogOutputEncoding = IBM037\n[log]\n\tshowRoot = false\n"
                  b"[format]\n\tpretty = \"Atoll-Capsule: victim\"\n[log]\n\tdate = format:%%s\n",
    }[kind]  # fmt: skip


def points(owner):
    return owner.answer("recover")


@as_both
@pytest.mark.parametrize("kind", ["illegible", "ebcdic"])
def test_a_point_is_described_by_atoll_alone(owner, kind):
    """F3, F4: encodings and forged lines change neither the point nor the home."""
    check_points(owner, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["header", "utf-16", "utf-7", "output"])
def test_other_encodings_change_nothing(owner, kind):
    """Siblings of F3 and F4."""
    check_points(owner, kind)


def check_points(owner, kind):
    target = owner.outside / "precious"
    owner.write({"precious": "precious\n"}, owner.outside)
    began = time.time() - 2
    owner.atoll("new", "x")
    owner.atoll("new", "victim")
    owner.inside("echo mine >mine.txt", "victim")
    text = configuration(kind, target, f"{owner.home}/recovered/../../outside\x1b[31m")
    owner.inside_python(CONFIGURE.format(text=text))
    if kind not in {"ebcdic", "header"}:
        # An index that differs from the files, so that the point has a second commit.
        owner.inside("echo staged >staged.txt; git add staged.txt; echo more >>staged.txt")
    owner.look(("show", "x"), ("diff", "x"))
    owner.atoll("rm", "x", "--force")
    [point] = points(owner)
    assert point["capsule"] == "x"
    assert point["id"].startswith("x/")
    assert began <= point["stored_at"] <= time.time() + 2
    listed = owner.atoll("recover").stdout
    assert "\x1b" not in listed
    assert "victim" not in listed
    assert "2096" not in listed
    # The home goes on working, for other capsules as well.
    assert [one["name"] for one in owner.answer("ls")] == ["victim"]
    owner.atoll("gc")
    owner.atoll("show", "victim")
    restored = owner.atoll("recover", point["id"], "--as", "again", check=False)
    assert restored.returncode == 0, restored.stderr
    assert owner.inside("cat work.txt", "again") == "work of x\n"
    assert target.read_text() == "precious\n"
    owner.atoll("rm", "again", "victim", "--force")
    assert {one["capsule"] for one in points(owner)} == {"x", "again", "victim"}
    owner.atoll("recover", point["id"], "--drop")
    assert (owner.outside / "precious").exists()


def test_control_git_believes_forged_lines(owner):
    """In a plain clone `git log` shows the forged lines, and cannot read the encoded message."""
    seen = {}
    for kind in ("illegible", "ebcdic", "header"):
        copy = owner.place / kind
        owner.git("clone", "--quiet", owner.repo, copy)
        text = configuration(kind, "/x", "/y")
        with (copy / ".git/config").open("ab") as file:
            file.write(text)
        commit = owner.git("commit-tree", "HEAD^{tree}", "-m", "honest: words", cwd=copy).strip()
        seen[kind] = owner.git(
            "-c", "i18n.logOutputEncoding=UTF-8", "log", "-1", "--format=%ct%n%B", commit, cwd=copy
        )  # fmt: skip
    assert "honest" not in seen["illegible"]
    assert "Atoll-Capsule: victim" in seen["ebcdic"]
    assert "Atoll-Capsule: victim" in seen["header"]


@as_both
def test_refs_of_an_agent_are_no_recovery_points(owner):
    """A sibling of F4: the names under which points are kept, made inside."""
    owner.atoll("new", "x")
    owner.atoll("new", "y")
    owner.inside(
        "C=$(git commit-tree HEAD^{tree} -p HEAD -m 'atoll: recovery point y/1' -m '"
        "Atoll-Capsule: y')\n"
        "for r in refs/atoll/recovery/y/20200101T000000-2 refs/heads/atoll/y refs/heads/main"
        " refs/stash refs/replace/$(git rev-parse HEAD) refs/atoll/layers/y; do"
        " git update-ref $r $C; done; git update-ref HEAD $C\n"
        "echo $C refs/atoll/recovery/y/2 >>.git/packed-refs; echo changed >>README.md"
    )
    main = owner.git("rev-parse", "main")
    owner.look(("show", "x"), ("export", "x"), ("export", "x", "--all"), ("recover",))
    assert points(owner) == []
    owner.atoll("rm", "x", "--force")
    assert [one["capsule"] for one in points(owner)] == ["x"]
    assert owner.git("rev-parse", "main") == main
    refs = owner.git("for-each-ref", "--format=%(refname)").split()
    assert not [ref for ref in refs if "recovery/y" in ref or "replace" in ref or "stash" in ref]
    tip = owner.git("rev-parse", "--verify", "--quiet", "atoll/y", check=False)
    assert tip in {"", main}


@as_both
def test_a_lost_store_does_not_make_agents_trusted(owner):
    """F2: `gc` finds capsules without records, and asks their repositories nothing."""
    owner.atoll("new", "x")
    groups = ("clean-filter", "fsmonitor", "hooks", "lfs-filter", "nested")
    planted = "".join(PLANTS[name][0].replace("RECORD", owner.recorder(name)) for name in groups)
    owner.inside(f"{planted}\nrm -f {owner.ran}; echo 'unsaved {owner.token}' >unsaved.txt")
    for path in owner.home.glob("state.db*"):
        path.unlink()
    owner.look(("gc", "--dry-run"), ("gc",), ("ls",), ("recover",), ("gc", "--gone"))
    assert owner.traces() == ""
    # Not by losing the work: it is in a capsule, a point, or a directory of the home.
    found = owner.run("grep", "-rls", f"unsaved {owner.token}", owner.home, check=False).stdout
    assert found or points(owner) or owner.answer("ls")


@as_both
@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_a_damaged_store_does_not_make_agents_trusted(owner, damage):
    """Siblings of F2."""
    owner.atoll("new", "x")
    plant = PLANTS["clean-filter"][0].replace("RECORD", owner.recorder("damaged"))
    owner.inside(f"{plant}\nrm -f {owner.ran}; echo unsaved >unsaved.txt")
    for path in owner.home.glob("state.db*"):
        path.unlink()
    store = owner.home / "state.db"
    if damage == "truncated":
        store.write_bytes(b"")
    else:
        store.write_bytes(b"garbage" * 1000)
    if not owner.is_us:
        user = persons.ordinary_user()
        with contextlib.suppress(FileNotFoundError):
            os.chown(store, user.pw_uid, user.pw_gid)
    owner.look(("gc",), ("ls",), ("recover",))
    assert owner.traces() == ""
    store.unlink(missing_ok=True)
    owner.look(("gc",))
    assert owner.traces() == ""


@as_both
def test_privileged_modes_do_not_leave_a_capsule(owner):
    """F10: setuid, setgid and file capabilities end with the capsule."""
    owner.atoll("new", "x")
    owner.inside(
        "git init -q nested; cp /bin/true nested/suid; chmod 6755 nested/suid; mkdir -p build dir\n"
        "cp /bin/true suid; chmod 4755 suid; cp /bin/true build/sgid; chmod 2755 build/sgid\n"
        "chmod 2777 dir; cp /bin/true dir/both; chmod 6777 dir/both; cp /bin/true ~/suid\n"
        "chmod 6755 ~/suid; cp /bin/true /tmp/suid; chmod 6755 /tmp/suid; echo x >locked\n"
        "chmod 000 locked; mv src moved; git add -A . 2>/dev/null; true"
    )
    # Control: on the host these bits stay, and are found.
    owner.run("sh", "-c", f"cp /bin/true {owner.outside}/s; chmod 6755 {owner.outside}/s")
    assert privileged(owner.outside)
    owner.look(("export", "x", "--all"), ("snapshot", "x"), ("fork", "x", "y"))
    # What was thrown away is removed in the background; `gc` returns when it is gone.
    owner.atoll("rm", "x", "y", "--force")
    owner.atoll("gc")
    assert privileged(owner.home) == []
    for point in points(owner):
        owner.atoll("recover", point["id"], "--as", "back", check=False)
        owner.look(("rm", "back", "--force"))
    owner.atoll("gc")
    assert privileged(owner.home) == []
    assert privileged(owner.repo) == []


def privileged(root):
    """Regular files with a privileged mode.

    A capsule can set S_ISGID, which directories need, and no filter can tell those from files: in
    its own layers, which only the owner can enter, it is let through.
    """
    found = []
    for top, _, names in os.walk(root):
        bits = stat.S_ISUID if "/pools/" in top else stat.S_ISUID | stat.S_ISGID
        for name in names:
            try:
                mode = os.lstat(os.path.join(top, name)).st_mode
            except FileNotFoundError:  # locks come and go
                continue
            if stat.S_ISREG(mode) and mode & bits:
                found.append((os.path.join(top, name), oct(mode)))
    return found
