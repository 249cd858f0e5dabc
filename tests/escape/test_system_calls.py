"""System calls that could weaken a capsule's walls, made for real under the filter.

Every refusal has its control, the same call without the filter. Attempts carry arguments that no
kernel accepts, so that a control changes nothing on this machine; attacks that succeed without the
filter are made in namespaces that end with them. A third run is under the same filter with marked
answers, which tells the filter's refusal from the kernel's own.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atoll.drivers.isolation.seccomp import RULES, build
from atoll.drivers.isolation.syscalls import ARCHITECTURES

MACHINE = platform.machine()
if MACHINE not in ARCHITECTURES:
    pytest.skip(f"there is no filter for `{MACHINE}`", allow_module_level=True)

KNOWN = ARCHITECTURES[MACHINE]
ORDINARY_UID = 65_534
PATH = "/usr/local/bin:/usr/bin:/bin"
# The interpreter of the tests may lie where an ordinary user cannot reach it.
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
WALLS = (
    "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-ipc", "--die-with-parent",
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp",
)  # fmt: skip
# `machine` is root without a namespace of its own: nobody runs capsules like that, but only there
# the controls get past the kernel's question for privileges.
WHO = {
    "user": (ORDINARY_UID, ("--unshare-user",)),
    "root": (0, ("--unshare-user",)),
    "machine": (0, ()),
}
# As much as bwrap can give: walls without privileges would hide what the filter does.
PRIVILEGED = ("--uid", "0", "--gid", "0", "--cap-add", "ALL")
# Every capability but SYS_RESOURCE, which some virtual machines keep back.
CAPABILITIES = ((1 << 38) - 1) & ~(1 << 24)
MARK = 2000

EINVAL, EPERM, ENOSYS = errno.EINVAL, errno.EPERM, errno.ENOSYS
NO_FAMILY, NO_PROTOCOL = errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT
BAD = 1  # as a pointer
NONE = -1  # as a descriptor
NOBODY = 0x7FFFFFF0  # as a process
ALL = 0xFFFFFFFF  # as flags
UNKNOWN = (-1,) * 6  # neither a pointer, nor a descriptor, nor flags
ABOVE = 1 << 40
CLONE_THREAD = 0x10400  # with FILES; without memory of its siblings it is invalid
NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
UNIX, INET, INET6, NETLINK, VSOCK = 1, 2, 10, 16, 40
STREAM, DGRAM, RAW, CLOEXEC = 1, 2, 3, 0x80000
CHAR, BLOCK = 0x2000, 0x6000
SET_UID, SET_GID, CREATE = 0o4000, 0o2000, 0o100


class Attempt(NamedTuple):
    call: str
    args: tuple[int, ...]
    answer: int = EPERM

    @property
    def registers(self) -> list[int]:
        return [*self.args, *[0] * (6 - len(self.args))]

    @property
    def number(self) -> int:
        return KNOWN.numbers[self.call] if self.call in KNOWN.numbers else int(self.call, 0)


ATTEMPTS = [
    Attempt("io_uring_setup", (0, BAD), ENOSYS),
    Attempt("io_uring_enter", (NONE, 0, 0, 0, 0, 0), ENOSYS),
    Attempt("io_uring_register", (NONE, 0, BAD, 0), ENOSYS),
    Attempt("ptrace", (0xFFFF, NOBODY, 0, 0)),
    Attempt("process_vm_readv", (NOBODY, BAD, 0, BAD, 0, ALL)),
    Attempt("process_vm_writev", (NOBODY, BAD, 0, BAD, 0, ALL)),
    Attempt("pidfd_getfd", (NONE, NONE, ALL)),
    Attempt("kcmp", (NOBODY, NOBODY, 0, 0, 0)),
    Attempt("add_key", (BAD, BAD, BAD, 0, 0)),
    Attempt("request_key", (BAD, BAD, BAD, 0)),
    Attempt("keyctl", (ALL, 0, 0, 0, 0)),
    Attempt("bpf", (ALL, BAD, 1 << 20)),
    Attempt("perf_event_open", (BAD, 0, -1, NONE, ALL)),
    Attempt("userfaultfd", (ALL,)),
    Attempt("kexec_load", (0, 9999, BAD, 0xFFFF)),
    Attempt("kexec_file_load", (NONE, NONE, 0, BAD, ALL)),
    Attempt("reboot", (0, 0, 0, 0)),  # without the magic numbers
    Attempt("init_module", (BAD, 0, BAD)),
    Attempt("finit_module", (NONE, BAD, ALL)),
    Attempt("delete_module", (BAD, 0)),
    Attempt("name_to_handle_at", (NONE, BAD, BAD, BAD, ALL)),
    Attempt("open_by_handle_at", (NONE, BAD, 0)),
    Attempt("mount", (BAD, BAD, BAD, 0, BAD)),
    Attempt("umount2", (BAD, ALL)),
    Attempt("pivot_root", (BAD, BAD)),
    Attempt("chroot", (BAD,)),
    Attempt("fsopen", (BAD, ALL)),
    Attempt("fsconfig", (NONE, 0, BAD, BAD, ALL)),
    Attempt("fsmount", (NONE, ALL, ALL)),
    Attempt("fspick", (NONE, BAD, ALL)),
    Attempt("open_tree", (NONE, BAD, ALL)),
    Attempt("open_tree_attr", (NONE, BAD, ALL, BAD, 0)),
    Attempt("move_mount", (NONE, BAD, NONE, BAD, ALL)),
    Attempt("mount_setattr", (NONE, BAD, ALL, BAD, 0)),
    Attempt("setns", (NONE, 0)),
    # The lowest bit is a signal's, and makes the flags invalid.
    *[Attempt("unshare", (flag | 1,)) for flag in (*NEW, 0x80, 0x100000, ABOVE)],
    *[Attempt("clone", (flag | CLONE_THREAD, 0, 0, 0, 0)) for flag in NEW],
    *[Attempt("clone", (flag | CLONE_THREAD | ABOVE, 0, 0, 0, 0)) for flag in NEW],
    *[Attempt("unshare", (flags | 1,)) for flags in (0x400, 0x400 | ABOVE)],
    *[Attempt("clone", (flags, 0, 0, 0, 0)) for flags in (0x10000, 0x10000 | ABOVE)],
    *[Attempt("close_range", (NONE, NONE, flags), EINVAL) for flags in (2, 2 | ABOVE)],
    Attempt("io_setup", (0, BAD), ENOSYS),
    Attempt("clone3", (BAD, 0), ENOSYS),
    Attempt("listns", (BAD, BAD, 0, ALL), ENOSYS),
    *[
        Attempt("ioctl", (NONE, command | above, BAD))
        for command in (0x5412, 0x541C, 0x5423)
        for above in (0, ABOVE)
    ],
    *[
        Attempt("fcntl", (NONE, command | above, 1))
        for command in (1024, 1040)
        for above in (0, ABOVE)
    ],
    # These succeed in the control, for a process that ends with it.
    *[Attempt("personality", (value,)) for value in (8, 0x20000, 0x40000, 0x400000, 8 | ABOVE)],
    Attempt("prctl", (35, 0, 0, 0, 1)),
    Attempt("prctl", (35 | ABOVE, 0, 0, 0, 1)),
    Attempt("swapon", (BAD, -1)),
    Attempt("swapoff", (BAD,)),
    Attempt("acct", (BAD,)),
    Attempt("quotactl", (ALL, BAD, 0, BAD)),
    Attempt("quotactl_fd", (NONE, ALL, 0, BAD)),
    Attempt("iopl", (4,)),
    Attempt("ioperm", (1 << 20, 1, 1)),
    Attempt("modify_ldt", (99, BAD, 0)),
    Attempt("clock_settime", (99, BAD)),
    Attempt("clock_adjtime", (99, BAD)),
    Attempt("settimeofday", (BAD, 0)),
    Attempt("adjtimex", (BAD,)),
    Attempt("sethostname", (BAD, -1)),
    Attempt("setdomainname", (BAD, -1)),
    Attempt("syslog", (99, BAD, 0)),
    Attempt("lookup_dcookie", (0, BAD, 0)),
    Attempt("nfsservctl", (99, BAD, BAD)),
    Attempt("uselib", (BAD,)),
    Attempt("sysfs", (99, 0, 0)),
    Attempt("_sysctl", (BAD,)),
    Attempt("vhangup", ()),  # hangs up the terminal of a session that has none
    Attempt("migrate_pages", (NOBODY, 0, 0, 0)),
    Attempt("move_pages", (NOBODY, 0, BAD, BAD, BAD, ALL)),
    Attempt("fanotify_init", (ALL, 0)),
    *[Attempt("mknod", (BAD, kind | 0o600, 0)) for kind in (CHAR, BLOCK, CHAR | ABOVE)],
    *[Attempt("mknodat", (NONE, BAD, kind | 0o600, 0)) for kind in (CHAR, BLOCK, CHAR | ABOVE)],
    *[
        Attempt(call, (NONE, mode))
        for call in ("fchmod",)
        for mode in (SET_UID, SET_UID | 0o755, SET_UID | ABOVE)
    ],
    *[Attempt(call, (BAD, SET_UID | 0o755)) for call in ("chmod", "creat", "mknod")],
    *[Attempt(call, (BAD, SET_GID | 0o755)) for call in ("creat", "mknod")],
    *[Attempt(call, (NONE, BAD, SET_UID | 0o755)) for call in ("fchmodat", "fchmodat2", "mknodat")],
    *[Attempt("open", (BAD, CREATE, mode)) for mode in (SET_UID, SET_GID, SET_UID | ABOVE)],
    *[Attempt("openat", (NONE, BAD, CREATE, mode)) for mode in (SET_UID, SET_GID)],
    Attempt("openat2", (NONE, BAD, BAD, 0), ENOSYS),
    *[Attempt("renameat2", (NONE, BAD, NONE, BAD, flags)) for flags in (4, 4 | ABOVE)],
    *[
        Attempt("socket", (family, RAW, 0), NO_FAMILY)
        for family in range(46)
        if family not in {UNIX, INET, INET6, NETLINK}
    ],
    Attempt("socket", (VSOCK, STREAM | CLOEXEC, 0), NO_FAMILY),
    Attempt("socket", (VSOCK | ABOVE, STREAM, 0), NO_FAMILY),
    *[Attempt("socket", (NETLINK, RAW, number), NO_PROTOCOL) for number in range(1, 24)],
    *[
        Attempt("socket", (family, kind, protocol))
        for family in (INET, INET6, INET | ABOVE)
        for kind in (RAW, RAW | CLOEXEC, RAW | ABOVE, 5, 6, 10)
        for protocol in (1, 6, 17, 255)
    ],
    *[
        Attempt("socket", (family, kind, protocol))
        for family in (INET, INET6, INET | ABOVE)
        for kind in (DGRAM, DGRAM | CLOEXEC, DGRAM | ABOVE)
        for protocol in (1, 58, 1 | ABOVE)
    ],
    *[
        Attempt("socket", (family, kind, protocol), NO_PROTOCOL)
        for family in (INET, INET6)
        for kind, protocol in ((STREAM, 132), (STREAM, 262), (STREAM, 262 | ABOVE), (DGRAM, 136))
    ],
    Attempt("socketpair", (INET, STREAM, 0, BAD), NO_FAMILY),
    # Calls that no kernel has yet, and those of x32.
    *[Attempt(hex(number), UNKNOWN, ENOSYS) for gap in KNOWN.gaps for number in (gap[0], gap[-1])],
    *[Attempt(hex(KNOWN.highest + step), UNKNOWN, ENOSYS) for step in (1, 2, 100)],
    *[Attempt(hex(0x40000000 | number), UNKNOWN, ENOSYS) for number in (39, 101, 321, 520)],
]
ATTEMPTS = [one for one in ATTEMPTS if one.call in KNOWN.numbers or one.call.startswith("0x")]
CALLS = sorted({attempt.call for attempt in ATTEMPTS})
# Where the kernel, too, may answer that it has no such thing.
MAY_BE_ABSENT = {NO_FAMILY, NO_PROTOCOL}

PROBE = """
import ctypes, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = []
for number, args in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if os.fork() == 0:
        ctypes.set_errno(0)
        done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args))
        os.write(writer, struct.pack("i", ctypes.get_errno() if done == -1 else 0))
        os._exit(0)
    os.close(writer)
    (answer,) = struct.unpack("i", os.read(reader, 4) or struct.pack("i", -1))
    os.close(reader)
    os.wait()
    answers.append(answer)
print(json.dumps(answers))
"""

# Each says `done`, or the name of the errno with which it was refused.
ATTACKS = r"""
import ctypes, errno, fcntl, os, pty, select, signal, stat, struct, sys, termios, tty
libc = ctypes.CDLL(None, use_errno=True)
numbers = dict(pair.split("=") for pair in sys.argv[2].split())

def call(name, *args):
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    done = libc.syscall(ctypes.c_long(int(numbers[name])), *args)
    if done == -1:
        raise OSError(ctypes.get_errno(), name)
    return done

def type_into_the_terminal():
    pid, master = pty.fork()
    if pid == 0:
        code = 1
        try:
            tty.setraw(0)
            fcntl.ioctl(0, termios.TIOCSTI, b"x")
            code = 0 if select.select([0], [], [], 5)[0] and os.read(0, 1) == b"x" else 1
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "TIOCSTI")

def new_user_namespace():
    call("unshare", 0x10000000)

def child_in_a_new_user_namespace():
    child = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def join_a_namespace():
    call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)

def mount_a_filesystem():
    call("mount", b"none", b"/tmp", b"tmpfs", 0, b"")

def mount_in_the_new_way():
    call("fsopen", b"tmpfs", 0)

def copy_a_mount():
    call("open_tree", -100, b"/tmp", 1)

def change_the_root():
    call("chroot", b"/tmp")

def number_of_a_file():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    call("name_to_handle_at", -100, b"/tmp", handle, ctypes.byref(ctypes.c_int()), 0)

def rename_the_capsule():
    call("sethostname", b"taken", 5)
    assert os.uname().nodename == "taken"

def hide_a_file():
    call("mknodat", -100, b"/tmp/mark", stat.S_IFCHR | 0o600, 0)
    assert stat.S_ISCHR(os.lstat("/tmp/mark").st_mode)

def hide_a_file_by_renaming():
    open("/tmp/a", "w").close()
    call("renameat2", -100, b"/tmp/a", -100, b"/tmp/b", 4)
    assert stat.S_ISCHR(os.lstat("/tmp/a").st_mode)

def make_a_file_that_runs_as_its_owner():
    open("/tmp/tool", "w").close()
    os.chmod("/tmp/tool", 0o4755)
    assert os.stat("/tmp/tool").st_mode & stat.S_ISUID

def create_a_file_that_runs_as_its_owner():
    os.umask(0)
    os.close(os.open("/tmp/made", os.O_CREAT | os.O_WRONLY, 0o6755))
    assert os.stat("/tmp/made").st_mode & stat.S_ISUID

def read_another_process():
    text = ctypes.create_string_buffer(b"secret", 6)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        seen = ctypes.create_string_buffer(6)
        ours, theirs = (struct.pack("QQ", ctypes.addressof(b), 6) for b in (seen, text))
        assert call("process_vm_readv", child, ours, 1, theirs, 1, 0) == 6
        assert seen.raw == b"secret"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

def trace_another_process():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        call("ptrace", 0x4206, child, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

def requests_past_the_filter():
    call("io_uring_setup", 1, ctypes.create_string_buffer(120))

def make_a_key():
    call("add_key", b"user", b"atoll-test", b"x", 1, -1)

def memory_without_random_places():
    call("personality", 0x40000)
    assert call("personality", 0xFFFFFFFF) == 0x40000

def catch_page_faults():
    call("userfaultfd", 1)

def raw_packets():
    call("socket", 2, 3, 1)

def pings():
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as stream:
        stream.write("0 0")
    call("socket", 2, 2, 1)

def pings_of_version_6():
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as stream:
        stream.write("0 0")
    call("socket", 10, 2, 58)

def all_packets():
    call("socket", 17, 3, 0x300)

def firewall():
    call("socket", 16, 3, 12)

def host_of_the_virtual_machine():
    call("socket", 40, 1, 0)

def ciphers_of_the_kernel():
    call("socket", 38, 5, 0)

def many_paths():
    call("socket", 2, 1, 262)

try:
    globals()[sys.argv[1]]()
    print("done")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
ATTACK_ANSWERS = {
    "requests_past_the_filter": "ENOSYS",
    "all_packets": "EAFNOSUPPORT",
    "host_of_the_virtual_machine": "EAFNOSUPPORT",
    "ciphers_of_the_kernel": "EAFNOSUPPORT",
    "firewall": "EPROTONOSUPPORT",
    "many_paths": "EPROTONOSUPPORT",
}
ATTACK_NAMES = [
    line.removeprefix("def ").removesuffix("():")
    for line in ATTACKS.splitlines()
    if line.endswith("():") and line.startswith("def ")
]

# mov eax, 20 (getpid); int 0x80; ret
INTERRUPT = """
import ctypes, mmap, os
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")
run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print(run(), os.getpid())
os._exit(0)
"""

# Lets nobody unshare anything without asking its parent, then tries it.
LISTENER = """
import ctypes, errno, os, select, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
seccomp, unshare = map(int, sys.argv[1:])
code = ctypes.create_string_buffer(
    struct.pack("<HBBI", 0x20, 0, 0, 0) + struct.pack("<HBBI", 0x15, 0, 1, unshare)
    + struct.pack("<HBBI", 0x06, 0, 0, 0x7FC00000) + struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(code)))
listener = libc.syscall(seccomp, 1, 8, program)
assert listener >= 0, os.strerror(ctypes.get_errno())
child = os.fork()
if child == 0:
    os._exit(ctypes.get_errno() if libc.unshare(0x10000000) == -1 else 0)
end = os.pidfd_open(child)
ready = select.select([listener, end], [], [], 20)[0]
if listener in ready:
    os.kill(child, signal.SIGKILL)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("asked" if listener in ready else errno.errorcode[code])
"""


def lack(reason):
    """A skip on a laptop, a failure in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def run(who, command, *, program=None, privileged=False, timeout_s=100):
    """Runs a command behind bwrap's walls, under this filter or under none."""
    uid, options = WHO[who]
    if privileged and "--unshare-user" in options:
        options += PRIVILEGED
    command = ["bwrap", *options, *WALLS, *command]
    given: dict[str, Any] = {}
    if os.geteuid() == 0:
        given = {"user": uid, "group": uid, "extra_groups": []}
    with open(os.memfd_create("filter"), "wb+") as file:
        if program is not None:
            file.write(program)
            file.flush()
            file.seek(0)
            command[1:1] = ["--seccomp", str(file.fileno())]
            given["pass_fds"] = (file.fileno(),)
        return subprocess.run(
            command,
            cwd="/",
            env={"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            # No terminal: what hangs one up or types into it finds none but its own.
            start_new_session=True,
            **given,
        )


def output_of(done):
    assert done.returncode == 0, f"{done.args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def marked(program):
    """The same filter with answers that no kernel gives."""
    lines = [list(line) for line in struct.iter_unpack("<HBBI", program)]
    for line in lines:
        if line[0] == 0x06 and line[3] >> 16 == 0x0005:
            line[3] += MARK
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


@functools.cache
def answers(who, kind):
    """errno of every attempt; `kind` is `filter`, `marked` or `control`."""
    program = {"filter": build(MACHINE), "marked": marked(build(MACHINE)), "control": None}[kind]
    attempts = json.dumps([(attempt.number, attempt.registers) for attempt in ATTEMPTS])
    said = output_of(run(who, [PYTHON, "-c", PROBE, attempts], program=program, privileged=True))
    return dict(zip(ATTEMPTS, json.loads(said), strict=True))


@pytest.fixture(params=WHO)
def anyone(request, require_tool):
    return as_far_as_possible(request.param, require_tool)


@pytest.fixture(params=["user", "root"])
def who(request, require_tool):
    return as_far_as_possible(request.param, require_tool)


def as_far_as_possible(name, require_tool):
    require_tool("bwrap")
    if name != "user" and os.geteuid() != 0:
        pytest.skip("only root can try what root may do")
    if name == "machine":
        held = int(Path("/proc/self/status").read_text().partition("CapEff:\t")[2].split()[0], 16)
        if held & CAPABILITIES != CAPABILITIES:
            pytest.skip("this root has not all the privileges that the controls need")
        lockdown = Path("/sys/kernel/security/lockdown")
        if lockdown.exists() and "[none]" not in lockdown.read_text():
            pytest.skip("this kernel is locked down, which refuses some controls")
    if problem := problem_with_walls(name):
        lack(f"bwrap does not work here: {problem}")
    return name


@functools.cache
def problem_with_walls(name):
    done = run(name, ["true"])
    return done.stderr if done.returncode else ""


# Attempts, with arguments that no kernel accepts.


def test_every_rule_is_tried():
    ruled = {call for rule in RULES for call in rule.calls}
    assert ruled & set(KNOWN.numbers) == {call for call in CALLS if not call.startswith("0x")}


@pytest.mark.parametrize("call", CALLS)
def test_refused(anyone, call):
    for attempt in [attempt for attempt in ATTEMPTS if attempt.call == call]:
        assert answers(anyone, "filter")[attempt] == attempt.answer, attempt
        assert answers(anyone, "marked")[attempt] == attempt.answer + MARK, attempt


@pytest.mark.parametrize("call", CALLS)
def test_control_is_answered_by_the_kernel(anyone, call):
    """The filter's answer is not what the kernel would have said anyway.

    In a namespace the kernel often asks for privileges first, and gives the answer of the filter.
    """
    for attempt in [attempt for attempt in ATTEMPTS if attempt.call == call]:
        answer = answers(anyone, "control")[attempt]
        assert 0 <= answer < MARK, attempt
        absent = answer in MAY_BE_ABSENT or (answer == ENOSYS and attempt.answer == ENOSYS)
        if anyone == "machine" and not absent:
            assert answer != attempt.answer, attempt


def test_host_keeps_its_name(anyone):
    before = socket.gethostname()
    for kind in ("filter", "marked", "control"):
        answers(anyone, kind)
    assert socket.gethostname() == before


# Attacks that succeed without the filter.


@pytest.mark.parametrize("attack", ATTACK_NAMES)
def test_attack_fails(who, attack):
    numbers = " ".join(f"{name}={number}" for name, number in KNOWN.numbers.items())
    command = [PYTHON, "-c", ATTACKS, attack, numbers]
    before = socket.gethostname()
    refused = output_of(run(who, command, program=build(MACHINE), privileged=True)).strip()
    assert refused == ATTACK_ANSWERS.get(attack, "EPERM")
    control = output_of(run(who, command, privileged=True)).strip()
    assert socket.gethostname() == before
    if control != "done":
        pytest.skip(f"this kernel does not let it happen anyway: {control}")


@pytest.mark.skipif(MACHINE != "x86_64", reason="the old gate to the kernel is of x86")
def test_32_bit_calls_are_refused(who):
    control = run(who, [PYTHON, "-c", INTERRUPT])
    if control.returncode < 0 or control.returncode >= 128:
        pytest.skip("this kernel has no 32-bit calls")
    seen, pid = output_of(control).split()
    assert seen == pid
    refused, pid = output_of(run(who, [PYTHON, "-c", INTERRUPT], program=build(MACHINE))).split()
    assert int(refused) == -ENOSYS


def test_own_filters_do_not_lift_it(who):
    """A payload may install a filter that asks itself; where this one refuses, it is not asked."""
    command = [PYTHON, "-c", LISTENER, "317" if MACHINE == "x86_64" else "277"]
    command.append(str(KNOWN.numbers["unshare"]))
    assert output_of(run(who, command)) == "asked\n"
    assert output_of(run(who, command, program=build(MACHINE))) == "EPERM\n"


# Debuggers.


@pytest.mark.parametrize("call", ["ptrace", "process_vm_readv", "pidfd_getfd", "kcmp"])
def test_debug_lets_debuggers_reach_the_kernel(who, call):
    attempts = [attempt for attempt in ATTEMPTS if attempt.call == call]
    request = json.dumps([(attempt.number, attempt.registers) for attempt in attempts])
    said = output_of(run(who, [PYTHON, "-c", PROBE, request], program=build(MACHINE, debug=True)))
    assert json.loads(said) == [answers(who, "control")[attempt] for attempt in attempts]


@pytest.mark.parametrize(
    ("tool", "command", "sign"),
    [
        ("strace", ["strace", "-e", "trace=execve", "true"], "exited with 0"),
        ("gdb", ["gdb", "-nx", "-batch", "-ex", "run", "-ex", "bt", "true"], "exited normally"),
    ],
)
def test_debuggers_work_only_with_debug(who, require_tool, tool, command, sign):
    require_tool(tool)
    said = [run(who, command, program=build(MACHINE, debug=debug)) for debug in (True, False)]
    allowed, refused = (done.stdout + done.stderr for done in said)
    assert sign in allowed
    assert sign not in refused


# Programs at work.

PROGRAMS = {
    "python threads": (
        "python3",
        """python3 -c '
import threading
from concurrent.futures import ThreadPoolExecutor
print(sum(ThreadPoolExecutor(8).map(lambda n: n * n, range(100))))'""",
        "328350",
    ),
    "python subprocess": (
        "python3",
        """python3 -c '
import subprocess
print(subprocess.run(["sh", "-c", "echo a | tr a b"], capture_output=True, text=True).stdout)
print(subprocess.run("echo c", shell=True, start_new_session=True, check=True).returncode)'""",
        "b\n\nc\n0",
    ),
    "python multiprocessing": (
        "python3",
        """cat > many.py <<'.'
import multiprocessing, sys
def square(n): return n * n
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(sum(pool.map(square, range(10))))
.
python3 many.py""",
        "285\n285\n285",
    ),
    "python asyncio and loopback": (
        "python3",
        """python3 -c '
import asyncio
async def serve(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()
async def ask(reader, writer):
    writer.write(b"hello\\n")
    print((await reader.read()).decode(), end="")
    writer.close()
async def main():
    for host in ("127.0.0.1", "::1"):
        async with await asyncio.start_server(serve, host, 8000):
            await ask(*await asyncio.open_connection(host, 8000))
    async with await asyncio.start_unix_server(serve, "socket"):
        await ask(*await asyncio.open_unix_connection("socket"))
    process = await asyncio.create_subprocess_exec("echo", "done")
    await process.wait()
asyncio.run(main())'""",
        "HELLO\nHELLO\nHELLO\ndone",
    ),
    "python names and addresses": (
        "python3",
        """python3 -c '
import socket
print(socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)[0][4])
print(socket.if_nameindex())'""",
        "('127.0.0.1', 80)\n[(1, 'lo')]",
    ),
    "node": (
        "node",
        """cat > work.js <<'.'
const { Worker, isMainThread, parentPort } = require("worker_threads");
if (!isMainThread) { parentPort.postMessage(6 * 7); } else {
  const fs = require("fs"), net = require("net"), child = require("child_process");
  new Worker(__filename).on("message", (n) => {
    fs.writeFileSync("a", String(n));
    console.log(child.execSync("cat a").toString(), fs.readFileSync("a", "utf8"));
    const server = net.createServer((s) => s.end("hello")).listen(0, "127.0.0.1", () =>
      net.connect(server.address().port, "127.0.0.1")
        .on("data", (data) => { console.log(String(data)); server.close(); }));
  });
}
.
node work.js""",
        "42 42\nhello",
    ),
    "git": (
        "git",
        """git init -q -b main repo && cd repo && git config user.name n && git config user.email e
echo a > a && git add a && git commit -qm first && git gc -q && git clone -q . ../copy
git worktree add -q ../tree && git -C ../copy log --format=%s && git status --short && git fsck""",
        "first",
    ),
    "gcc and make": (
        "gcc make",
        """printf '#include <stdio.h>\\nint main(void) { puts("built"); return 0; }\\n' > a.c
printf 'a: a.o\\n\\t@gcc -o a a.o\\n%%.o: %%.c\\n\\t@gcc -c -o $@ $<\\n' > Makefile
make -s -j 2 && ./a""",
        "built",
    ),
    "timeout": ("timeout", "timeout 0.1 sleep 60; echo $?", "124"),
    "nice": ("nice", "nice -n 5 nice", "5"),
    "pipes": ("mkfifo", "mkfifo p && (echo through > p &) && cat p", "through"),
    "tar, cp and mv": (
        "tar",
        """mkdir d e && echo x > d/f && tar cf - d | tar xf - -C e
cp -a e g && mv g h && cat h/d/f""",
        "x",
    ),
    "job control": (
        "bash",
        """bash -c 'set -m; sleep 60 & kill -STOP %1
while ! jobs -s | grep -q Stopped; do sleep 0.01; done
jobs -s | grep -o Stopped; kill -CONT %1; kill %1; wait %1; echo $?'""",
        "Stopped\n143",
    ),
    "a terminal of one's own": (
        "script",
        "script -qec 'tty | cut -c-9; stty size' /dev/null | tr -d '\\r' | head -1",
        "/dev/pts/",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_works(who, require_tool, name):
    tools, script, wanted = PROGRAMS[name]
    for tool in tools.split():
        require_tool(tool)
    done = run(who, ["bash", "-c", script], program=build(MACHINE))
    assert output_of(done).strip() == wanted, done.stderr
