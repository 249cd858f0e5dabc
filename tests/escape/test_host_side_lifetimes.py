"""Nothing of a capsule outlives its command, fills the memory, or inherits what is open."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import hostile
from git_plants import PLANTS
from hostile import as_both

owner = hostile.owner
LIMIT_BYTES = 200 << 20
FLOOD_BYTES = 400 << 20
# Makes a tracked file one that git has to read again, through a filter.
FILTER = (
    "git config filter.e.clean '{command}'; mkdir -p .git/info\n"
    "echo 'README.md filter=e' >.git/info/attributes; touch -d '+20 sec' README.md\n"
)
FLOODS = {
    "stderr": FILTER.format(command=f"head -c {FLOOD_BYTES} /dev/zero >&2; cat"),
    "stdout": FILTER.format(command=f"head -c {FLOOD_BYTES} /dev/zero"),
    "git": FILTER.format(
        command="for f in /proc/[0-9]*/fd/1; do timeout 5 head -c 400000000 /dev/zero >$f; done "
        "2>/dev/null; cat"
    ),
}
# Repositories and files that are enormous to whoever reads them whole.
GIANTS = {
    "packed-refs": "truncate -s 3G .git/packed-refs",
    "head": "truncate -s 3G .git/HEAD",
    "branch": "truncate -s 3G .git/$(git symbolic-ref HEAD)",
    "index": "truncate -s 3G .git/index",
    "config": "truncate -s 3G .git/config",
    "attributes": "truncate -s 3G .gitattributes",
    "modules": "truncate -s 3G .gitmodules",
    "ignore": "truncate -s 3G .gitignore",
    "message": "git update-ref HEAD $( (printf 'tree %s\\nauthor a <a> 0 +0000\\ncommitter a <a> 0 "
    "+0000\\n\\n' $(git rev-parse HEAD^{tree}); head -c 700000000 /dev/zero | tr '\\0' x) | "
    "git hash-object -t commit -w --stdin)",
    "object": "head -c 700000000 /dev/zero >big; git add big; git commit -qm big; rm big",
    "names": f'{hostile.SYSTEM_PYTHON} -c \'for i in range(20000): open(f"{{i:0200}}", "w")\'',
    "sparse": "truncate -s 1T tera; truncate -s 900G src/calc.py",
}


def check_giant(owner, script):
    owner.atoll("new", "x")
    owner.inside(script + "; true", check=False)
    peaks = {}
    for words in (("show", "x"), ("diff", "x", "--stat"), ("ls",), ("rm", "x"),
                  ("rm", "x", "--force"), ("recover",)):  # fmt: skip
        peaks[words] = owner.peak_bytes(*words)
    assert {words: peak for words, peak in peaks.items() if peak > LIMIT_BYTES} == {}
    owner.atoll("ls")


def test_control_the_meter_sees_a_large_process(owner):
    report = owner.place / "report"
    program = f"x = bytearray({LIMIT_BYTES}); x[::4096] = b'x' * len(x[::4096])"
    owner.run(sys.executable, "-c", hostile.METER, report,
              sys.executable, "-c", program)  # fmt: skip
    assert json.loads(report.read_text())["peak_bytes"] > LIMIT_BYTES


@as_both
def test_a_flood_does_not_fill_the_hosts_memory(owner):
    """F5: a filter writes to standard error while the owner looks."""
    check_flood(owner, "stderr")


@pytest.mark.soak
@pytest.mark.parametrize("flood", ["stdout", "git"])
def test_other_floods_do_not_either(owner, flood):
    """Siblings of F5: as the file's new content, and into the output of git itself."""
    check_flood(owner, flood)


def check_flood(owner, flood):
    owner.atoll("new", "x")
    owner.inside(FLOODS[flood])
    for words in (("show", "x"), ("rm", "x", "--force")):
        assert owner.peak_bytes(*words) < LIMIT_BYTES, words


@pytest.mark.soak
@pytest.mark.parametrize("giant", GIANTS)
def test_giants_do_not_fill_the_hosts_memory(owner, giant):
    """Siblings of F5: sizes that are only said, or only written down."""
    check_giant(owner, GIANTS[giant])


# What a payload may not do to the first process of its sandbox.
ATTACK_INIT = """
import ctypes, os
done = []
for name, mode in (("mem", os.O_RDWR), ("mem", os.O_WRONLY), ("mem", os.O_RDONLY)):
    try:
        os.close(os.open(f"/proc/{pid}/{name}", mode)); done.append(f"{name}{mode}")
    except OSError: pass
for name in ("environ", "auxv", "maps"):
    try:
        if open(f"/proc/{pid}/{name}", "rb").read(): done.append(name)
    except OSError: pass
for name in ("root", "cwd", "exe"):
    try: os.readlink(f"/proc/{pid}/{name}"); done.append(name)
    except OSError: pass
try: done += [f"fd{f}" for f in os.listdir(f"/proc/{pid}/fd")]
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(0x4206, pid, 0, 0) == 0:
    done.append("ptrace"); libc.ptrace(17, pid, 0, 0)
print(" ".join(done))
"""


@as_both
def test_the_first_process_of_a_sandbox_is_not_writable(owner):
    """F6: code in process 1 would outlive every control."""
    owner.atoll("new", "x")
    reached = owner.inside_python("pid = 1\n" + ATTACK_INIT).split()
    assert [word for word in reached if word not in {"cwd", "root", "exe"}] == []
    # Control: a payload reaches a child of its own.
    child = "import subprocess\nchild = subprocess.Popen(['sleep', '100'])\npid = child.pid\n"
    reached = owner.inside_python(child + ATTACK_INIT + "child.kill()\n").split()
    assert "mem2" in reached


@as_both
def test_hooks_do_not_reach_their_first_process_either(owner):
    """F6: what a commit starts is a run like any other."""
    owner.atoll("new", "x")
    program = "pid = 1\n" + ATTACK_INIT.replace("print(", "print('reached', ")
    owner.inside(
        "cat >/tmp/attack.py <<'END'\n" + program + "END\nmkdir -p .git/hooks\n"
        f"printf '#!/bin/sh\\n{hostile.SYSTEM_PYTHON} /tmp/attack.py >/tmp/said\\n'"
        " >.git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit; echo new >new.txt"
    )
    owner.atoll("commit", "x", "-m", "with a hook")
    said = owner.inside("cat /tmp/said").split()
    assert said[0] == "reached"
    assert [word for word in said[1:] if word not in {"cwd", "root", "exe"}] == []


@as_both
def test_nothing_outlives_stop_pause_and_removal(owner):
    """F6: daemons that a filter, a hook or a run starts, with a word in their command lines."""
    word = f"{owner.token}daemon"
    # `tail` complains about the word and goes on with the other file.
    daemon = f"(setsid tail -f /dev/null {word} >/dev/null 2>&1 &)"
    owner.atoll("new", "x")
    hooks = PLANTS["hooks"][0].replace("RECORD", daemon)
    owner.inside(FILTER.format(command=f"{daemon}; cat") + hooks + "echo new >new.txt")
    owner.look(("show", "x"), ("diff", "x"), ("snapshot", "x"))
    assert hostile.wait_for(lambda: not owner.with_token(word)), "after a look"
    owner.look(("commit", "x", "-m", "y"))
    assert hostile.wait_for(lambda: not owner.with_token(word)), "after a commit"
    owner.atoll("run", "-d", "x", "--", "sh", "-c", f"{daemon}; exec tail -f /dev/null {word}")
    # Control: the word is found while the run lives.
    assert hostile.wait_for(lambda: owner.with_token(word))
    owner.atoll("stop", "x", "--grace", "0")
    assert hostile.wait_for(lambda: not owner.with_token(word)), "after stop"
    owner.atoll("rm", "x", "--force")
    assert owner.with_token(word) == []


LIST_DESCRIPTORS = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError: continue
    for number in numbers:
        try: target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError: continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/memfd:")):
            print(pid, number, target)
"""


@as_both
def test_no_descriptor_of_the_host_is_inherited(owner):
    """F9: a lock file of the owner's was open inside, and could be written."""
    owner.atoll("new", "x")
    for name in ("run", "hook", "detached"):
        if name == "hook":
            owner.inside(
                f"mkdir -p .git/hooks; cat >/tmp/list.py <<'END'\n{LIST_DESCRIPTORS}END\n"
                f"printf '#!/bin/sh\\n{hostile.SYSTEM_PYTHON} /tmp/list.py >/tmp/said\\n' "
                ">.git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit; echo n >n.txt"
            )
            owner.atoll("commit", "x", "-m", "n")
            found = owner.inside("cat /tmp/said")
        elif name == "run":
            found = owner.inside_python(LIST_DESCRIPTORS)
        else:
            words = ("-d", "x", "--", hostile.SYSTEM_PYTHON, "-c", LIST_DESCRIPTORS)
            owner.atoll("run", *words)
            owner.atoll("wait", "x", check=False)
            found = owner.atoll("logs", "x").stdout
        assert [line for line in found.splitlines() if str(owner.home) in line] == [], name
        assert "locks/" not in found
    # Control: an inherited descriptor would be seen.
    lock = owner.outside / "lock"
    owner.write({"lock": ""}, owner.outside)
    script = f"import os; os.open({str(lock)!r}, os.O_RDWR)\n" + LIST_DESCRIPTORS
    assert str(lock) in owner.run(hostile.SYSTEM_PYTHON, "-c", script).stdout


@as_both
def test_filters_see_no_descriptor_of_the_host(owner):
    """F9 in questions: if anything of the agent's runs there at all."""
    owner.atoll("new", "x")
    owner.inside(
        f"cat >/tmp/list.py <<'END'\n{LIST_DESCRIPTORS}END\n"
        + FILTER.format(command=f"{hostile.SYSTEM_PYTHON} /tmp/list.py >>/tmp/said; cat")
    )
    owner.look(("show", "x"), ("diff", "x"), ("snapshot", "x"))
    said = owner.inside("cat /tmp/said 2>/dev/null; true")
    assert [line for line in said.splitlines() if str(owner.home) in line] == []
    assert not [path for path in Path(owner.home).glob("locks/*") if os.path.getsize(path) > 4096]
