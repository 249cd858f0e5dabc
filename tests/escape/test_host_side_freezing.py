"""A capsule that is held still stays still, and a copy of a live one never follows its links."""

from __future__ import annotations

from pathlib import Path

import pytest

import hostile
from hostile import as_both

owner = hostile.owner
# Timers that send SIGCONT undo a SIGSTOP as often as one likes.
UNDYING = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGCONT, lambda *_: None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("pad", ctypes.c_byte * 48)]
class Spec(ctypes.Structure):
    _fields_ = [("times", ctypes.c_long * 4)]
for number in range(64):
    event, timer = Event(None, signal.SIGCONT, 0), ctypes.c_void_p()
    assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
    spec = Spec((ctypes.c_long * 4)(0, 64_000_000, 0, 1_000_000 * (number + 1)))
    assert libc.timer_settime(timer, 0, ctypes.byref(spec), None) == 0
"""
COUNT = UNDYING + "open('ready', 'w').close()\nwhile True: os.getppid()\n"
# Exchanges a directory for a link as soon as a copy has come to the file before the key.
EXCHANGE = (
    UNDYING
    + """
os.makedirs("p", exist_ok=True)
for name in ("b1", "b2", "b3", "key"):
    with open(f"p/{name}", "wb") as file:
        if name == "b3":
            for _ in range(200): file.write(b"x" * (1 << 20))
        file.write(name.encode())
os.symlink(sys.argv[1], "q")
os.utime("p/b3", (1, 2_000_000_000))
open("ready", "w").close()
while os.stat("p/b3").st_atime < 2: pass
libc.renameat2(-100, b"p", -100, b"q", 2)
open("exchanged", "w").close()
while True: signal.pause()
"""
)
SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("p", exist_ok=True)
open("p/id_rsa", "w").write("innocent")
os.symlink(sys.argv[1], "q")
open("ready", "w").close()
while True: libc.renameat2(-100, b"p", -100, b"q", 2)
"""


def start(owner, script, *args):
    """A background run, once it says that it is ready."""
    owner.inside(f"cat >/tmp/program.py <<'END'\n{script}END\nrm -f ready")
    words = ("sh", "-c", f'exec {hostile.SYSTEM_PYTHON} /tmp/program.py {owner.token}mark "$@"')
    script = (*words, "sh", *map(str, args))
    owner.atoll("run", "-d", "x", "--", *script)
    assert hostile.wait_for(lambda: "ready" in owner.inside("ls", check=False), 60)


def activity(owner):
    """How much each of the marked processes has run, as the kernel counts."""
    found = {}
    for pid in owner.with_token(f"{owner.token}mark"):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name.startswith("python"):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            switches = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text()
                        .splitlines() if "ctxt_switches" in line]  # fmt: skip
            found[pid] = (fields[11], fields[12], *switches)
    return found


@as_both
def test_a_paused_capsule_does_nothing(owner):
    """F1: `pause` is not undone by timers that send SIGCONT."""
    owner.atoll("new", "x")
    start(owner, COUNT.replace("sys.argv[1]", "''"))
    # Control: it runs.
    before = activity(owner)
    assert before
    assert hostile.wait_for(lambda: activity(owner) != before)
    done = owner.atoll("pause", "x", check=False)
    if done.returncode:
        # Fail closed: what cannot be held is said, not claimed.
        assert "pause" in done.stderr or "freez" in done.stderr or "still" in done.stderr
    else:
        held = activity(owner)
        # These take a while, in which it would have run many times.
        owner.look(("ps", "x"), ("show", "x"), ("ls",))
        assert activity(owner) == held
        owner.atoll("resume", "x")
        assert hostile.wait_for(lambda: activity(owner) != held)
    owner.atoll("stop", "x", "--grace", "0")


@as_both
@pytest.mark.parametrize("verb", ["fork", "snapshot"])
def test_a_copy_of_a_live_capsule_follows_no_exchanged_directory(owner, verb):
    """F1: the copy is made while the agent exchanges a directory for a link to the secrets."""
    script = EXCHANGE.replace("sys.argv[1]", "sys.argv[2]")
    owner.atoll("new", "x")
    start(owner, script, secret_directory(owner))
    if verb == "fork":
        owner.look(("fork", "x", "y"))
    else:
        owner.look(("snapshot", "x"), ("fork", "x", "y", "--at", "1"))
    owner.atoll("stop", "x", "--grace", "0", check=False)
    seen = owner.inside("cat {p,q}/{key,id_rsa,b1} 2>/dev/null; true", "y", check=False)
    assert owner.token not in seen
    assert not files_with(owner.home, owner.token)
    # No work: it would take long to store.
    for name in ("x", "y"):
        owner.inside("rm -rf p q", name, check=False)


@pytest.mark.soak
@as_both
def test_copies_of_a_capsule_that_never_rests(owner):
    """A sibling of F1: the two change places all the time, in every verb that reads files."""
    owner.atoll("new", "x")
    start(owner, SWAP.replace("sys.argv[1]", "sys.argv[2]"), secret_directory(owner))
    said = owner.look(("diff", "x"), ("show", "x"), ("snapshot", "x"), ("fork", "x", "y"),
                      ("export", "x", "--all"), ("diff", "x"))  # fmt: skip
    assert owner.token not in said
    owner.look(("rm", "x", "--force"))
    assert owner.token not in owner.inside(
        "cat {p,q}/{key,id_rsa,b1} 2>/dev/null; true", "y", check=False
    )
    assert not files_with(owner.home, owner.token)
    assert not owner.comes_out(f"{owner.token}\n")


def secret_directory(owner):
    """Files of the owner's under the names that the copy is about to read."""
    place = owner.outside / "vault"
    owner.write(dict.fromkeys(("key", "id_rsa", "b1"), f"{owner.token}\n"), place)
    place.chmod(0o700)
    return place


def files_with(root, text):
    """Small regular files below a directory that hold a text."""
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()
            and path.stat().st_size < 4096 and text.encode() in path.read_bytes()
            and path.name in {"key", "id_rsa", "b1"}]  # fmt: skip


def test_control_a_plain_copy_follows_the_exchange(owner):
    """`cp -a` of the same names reads the secret when the directory is a link by then."""
    work = owner.outside / "work"
    work.mkdir()
    (work / "p").symlink_to(secret_directory(owner))
    owner.run("cp", "-a", f"{work}/p/.", owner.outside / "copy")
    assert owner.token in (owner.outside / "copy/key").read_text()
