"""A home without room or without inodes: the verbs that make room work, and nothing is left
half-removed; and a home that can only be read.

On a small filesystem of the test's own, in a mount namespace of its own: as root and in a user
namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PREPARE = """
set -e
mount -t tmpfs -o "size=48m,nr_inodes=2500" tmpfs "$PLACE"
export ATOLL_HOME="$PLACE/home"
git clone -q . "$REPO"; cd "$REPO"
atoll() { "$PYTHON" -m atoll "$@"; }
try() { set +e; atoll "$@" >"$OUT/out" 2>"$OUT/err"; code=$?; set -e; record "$code" "$@"; }
record() { "$PYTHON" - "$OUT" "$@" <<'END'
import json, sys
out, code, *argv = sys.argv[1:]
texts = [open(f"{out}/{name}").read() for name in ("out", "err")]
with open(f"{out}/log", "a") as log:
    print(json.dumps({"argv": argv, "code": int(code), "out": texts[0], "err": texts[1]}), file=log)
END
}
atoll -q new large; atoll -q new small; atoll -q new filler
atoll run large -- sh -c 'head -c 12000000 /dev/urandom >big'
atoll run small -- sh -c 'echo small >work.txt'
"""
BLOCKS = "atoll run filler -- sh -c 'cat /dev/zero >fill' || true"
INODES = "atoll run filler -- sh -c 'mkdir d; cd d; i=0; while : >f$i; do i=$((i+1)); done' || true"
USE = """
try ls
try new more
try rm large --force
try ls --json
try recover --json
try gc
try run filler -- sh -c 'rm -rf fill d; echo freed'
try rm large small --force
try recover --json
try ls --json
test -n "$(ls "$ATOLL_HOME/reserve")"
atoll -q rm filler --force
"""
NESTED = "atoll run large -- sh -c 'git init -q inner; echo kept >inner/file'\n"
"""A repository inside is not stored in git but copied."""
RETRY = """
try rm large --force
test -z "$(find "$ATOLL_HOME" -name '*.partial')"
test -n "$(ls "$ATOLL_HOME/reserve")"
try ls --json
try run filler -- rm fill
try rm large --force
try recover --json
"""
DEAD = """
"$PYTHON" - "$PLACE" <<'END' || test $? = 9
import os, sys
import atoll
from atoll.engine.state.session import make_room
def die(step, subject):
    if step == "rm.announced":
        os._exit(9)
make_room(everything=False)
project = atoll.open_project(listen=die, background=False)
project.capsule("large").remove(force=True)
END
"$PYTHON" - "$PLACE" <<'END'
import os, sys
found = os.statvfs(sys.argv[1])
with open(f"{sys.argv[1]}/other", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - 700_000)
END
try run filler -- rm fill
try ls --json
try recover --json
"""
LOST = """
rm -r "$ATOLL_HOME/reserve"
cat /dev/zero >"$PLACE/other" || true
rm "$ATOLL_HOME"/state.db*; LOSE
cat /dev/zero >>"$PLACE/other" || true
try gc
rm "$PLACE/other"
try gc
try ls --json
"""
READ_ONLY = """
atoll -q rm small --force
mount --bind "$PLACE" "$PLACE"
mount -o remount,bind,ro "$PLACE"
for verb in ls "ls --json" "show large" "diff large --stat" "logs large" "ps large" "path large" \
    recover "show --base" "gc --dry-run"; do try $verb; done
for verb in "new more" "run large -- true" "rm large --force" gc; do try $verb; done
"""


@pytest.fixture
def on_small_disk(repo, tmp_path, require_tool, atoll_home):
    """`on_small_disk(script)`: what each `try` in the script came to, by its words."""
    place, out = tmp_path / "small", tmp_path / "out"
    place.mkdir()
    out.mkdir()

    def run(
        script: str, *, level: str = "worktree", repository: str = "small/repo"
    ) -> list[dict[str, object]]:
        namespace = [require_tool("unshare"), "--mount"]
        if os.geteuid() != 0:
            namespace += ["--user", "--map-root-user"]
        env = {**os.environ, "PLACE": str(place), "OUT": str(out), "PYTHON": sys.executable}
        env |= {"ATOLL_LEVEL": level, "REPO": str(tmp_path / repository)}
        done = subprocess.run(
            [*namespace, "bash", "-c", PREPARE + script],
            cwd=repo, env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        found = [json.loads(line) for line in (out / "log").read_text().splitlines()]
        for one in found:
            assert "Traceback" not in one["err"], one
            assert "bug" not in one["err"], one
        return found

    return run


@pytest.mark.parametrize(("kind", "cure"), [("blocks", "df -h"), ("inodes", "df -i")])
def test_verbs_that_make_room_work_without_room(on_small_disk, kind, cure):
    # A worktree is moved aside, which needs no room; copies do not fit.
    level = "clone" if kind == "blocks" else "worktree"
    steps = on_small_disk((BLOCKS if kind == "blocks" else INODES) + USE, level=level)
    seen, new, removed, after, points, gc, freed, later, final_points, left = steps
    assert seen["code"] == 0
    assert new["code"] in (3, 5)
    assert f"hint: {cure} " in new["err"], new
    states = {c["name"]: c["state"] for c in json.loads(after["out"])["data"]}
    if kind == "blocks":
        # Its work does not fit anywhere: it is as it was, and can be entered.
        assert removed["code"] == 3, removed
        assert "the work of `large` cannot be stored" in removed["err"]
        assert states == {"large": "ready", "small": "ready", "filler": "ready"}
        assert json.loads(points["out"])["data"] == []
    else:
        assert removed["code"] == 0, removed
        assert states == {"small": "ready", "filler": "ready"}
    assert "still removing" not in after["err"]
    assert gc["code"] == 0, gc
    assert (freed["code"], freed["out"]) == (0, "freed\n"), freed
    wanted = 0 if kind == "blocks" else 4
    assert later["code"] == wanted, later
    capsules = {p["capsule"] for p in json.loads(final_points["out"])["data"]}
    assert "large" in capsules
    assert "more" not in {c["name"] for c in json.loads(left["out"])["data"]}


@pytest.mark.parametrize("before", ["", NESTED])
def test_a_removal_without_room_leaves_the_capsule_and_the_database_usable(on_small_disk, before):
    steps = on_small_disk(before + BLOCKS + RETRY, level="clone", repository="elsewhere")
    refused, seen, freed, removed, points = steps
    assert refused["code"] == 3, refused
    assert "the work of `large` cannot be stored" in refused["err"]
    assert {c["state"] for c in json.loads(seen["out"])["data"]} == {"ready"}
    assert "still removing" not in seen["err"]
    assert freed["code"] == 0, freed
    assert removed["code"] == 0, removed
    assert [p["capsule"] for p in json.loads(points["out"])["data"]] == ["large"]


def test_a_command_on_a_full_disk_stores_no_work_of_another_capsule(on_small_disk):
    freed, seen, points = on_small_disk(BLOCKS + DEAD, level="clone", repository="elsewhere")
    assert freed["code"] == 0, freed
    assert "`large` is still removing: the filesystem at" in freed["err"]
    # Once there is room, the next command does.
    assert {c["name"] for c in json.loads(seen["out"])["data"]} == {"small", "filler"}
    assert [p["capsule"] for p in json.loads(points["out"])["data"]] == ["large"]


@pytest.mark.parametrize(
    "lose", ["true", 'rm -r "$ATOLL_HOME/backups"', 'echo junk >"$ATOLL_HOME/state.db"']
)
def test_a_database_that_cannot_be_restored_on_a_full_disk_is_no_bug(on_small_disk, lose):
    refused, repaired, seen = on_small_disk(LOST.replace("LOSE", lose))
    assert refused["code"] == 3, refused
    assert "hint: df -h" in refused["err"], refused
    assert repaired["code"] == 0, repaired
    names = {c["name"] for c in json.loads(seen["out"])["data"]}
    assert names == {"large", "small", "filler"}


def test_a_read_only_home_can_be_read(on_small_disk):
    for step in on_small_disk(READ_ONLY):
        if step["argv"][:1] in (["new"], ["run"], ["rm"]) or step["argv"] == ["gc"]:
            assert step["code"] == 3, step
            assert "read-only" in step["err"], step
        else:
            assert step["code"] == 0, step
            assert "large" in step["out"] or step["argv"][0] != "ls", step
