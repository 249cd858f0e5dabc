"""The filter on system calls, judged by a small machine that runs it as the kernel would.

What must be refused is written down here once more, by hand: a rule that vanishes is missed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import struct
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.isolation import seccomp
from atoll.drivers.isolation.seccomp import Branch, Goto, Label, Plain, assemble, build
from atoll.drivers.isolation.syscalls import ARCHITECTURES
from atoll.model.errors import IsolationError

ARCHS = ("x86_64", "aarch64")
LOAD, AND, RETURN, GOTO = 0x20, 0x54, 0x06, 0x05
TESTS = {
    0x15: lambda a, k: a == k,
    0x25: lambda a, k: a > k,
    0x35: lambda a, k: a >= k,
}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
X32_BIT = 0x40000000
AUDIT_I386, AUDIT_ARM = 0x40000003, 0x40000028
ABOVE = 0xDEADBEEF << 32
"""Rubbish in the upper half of a register, which the kernel does not look at for an int."""

EINVAL, EPERM, ENOSYS = errno.EINVAL, errno.EPERM, errno.ENOSYS
NO_FAMILY, NO_PROTOCOL = errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT

# Whatever the arguments are.
REFUSED = {
    EPERM: """
        keyctl add_key request_key bpf perf_event_open userfaultfd kexec_load kexec_file_load
        init_module finit_module delete_module open_by_handle_at name_to_handle_at mount umount2
        pivot_root chroot fsopen fsconfig fsmount fspick open_tree move_mount mount_setattr
        open_tree_attr setns swapon swapoff reboot acct quotactl quotactl_fd iopl ioperm modify_ldt
        clock_settime clock_adjtime settimeofday adjtimex lookup_dcookie nfsservctl syslog uselib
        sysfs _sysctl vhangup migrate_pages move_pages fanotify_init sethostname setdomainname
    """,
    ENOSYS: "clone3 openat2 io_setup io_uring_setup io_uring_enter io_uring_register listns",
}
DEBUG = ["ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"]
NOT_ON_AARCH64 = {
    "iopl",
    "ioperm",
    "modify_ldt",
    "uselib",
    "sysfs",
    "_sysctl",
    "mknod",
    "open",
    "creat",
    "chmod",
}

CLONE_THREADS, CLONE_FORK, CLONE_VFORK = 0x3D0F00, 0x01200011, 0x4111
NEW = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
NEWTIME = 0x80
NONBLOCK, CLOEXEC = 0x800, 0x80000
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
STREAM, DGRAM, RAW, RDM, SEQPACKET, DCCP_TYPE, PACKET = 1, 2, 3, 4, 5, 6, 10
FIFO, CHAR, DIRECTORY, BLOCK, REGULAR, SOCKET = 0x1000, 0x2000, 0x4000, 0x6000, 0x8000, 0xC000

SET_UID, SET_GID = 0o4000, 0o2000
CREATE, TEMPORARY = 0o100, 0o20200002
# What comes before the mode.
MAKERS = {
    "mknod": (0,), "mknodat": (0, 0), "creat": (0,), "open": (0, CREATE), "openat": (0, 0, CREATE),
}  # fmt: skip
CHANGERS = {"chmod": (0,), "fchmod": (0,), "fchmodat": (0, 0), "fchmodat2": (0, 0)}

# (call, arguments, errno or 0)
JUDGED = [
    *[("clone", (flag | CLONE_FORK,), EPERM) for flag in NEW.values()],
    *[("clone", (flag | ABOVE,), EPERM) for flag in NEW.values()],
    *[("clone", (flags,), 0) for flags in (CLONE_FORK, CLONE_VFORK, CLONE_THREADS, 17, 0)],
    ("clone", (CLONE_FORK | ABOVE, *[2**64 - 1] * 5), 0),
    *[("unshare", (flag,), EPERM) for flag in (*NEW.values(), NEWTIME, 0x100000, 1 << 32)],
    ("unshare", (0x10000000 | 0x200,), EPERM),
    *[("unshare", (flags,), 0) for flags in (0, 0x200, 0x40000)],
    *[("unshare", (flags,), EPERM) for flags in (0x400, 0x600)],
    *[("clone", (flags,), EPERM) for flags in (0x10000, 0x10000 | ABOVE, CLONE_THREADS & ~0x400)],
    *[("clone", (flags,), 0) for flags in (0x400, 0x10400)],
    *[("close_range", (3, 9, flags), EINVAL) for flags in (2, 6, 2 | ABOVE)],
    *[("close_range", (3, 9, flags), 0) for flags in (0, 4)],
    *[("ioctl", (0, command), EPERM) for command in (0x5412, 0x541C, 0x5423)],
    *[("ioctl", (0, command | ABOVE), EPERM) for command in (0x5412, 0x541C, 0x5423)],
    # TCGETS, TIOCGWINSZ, TIOCSCTTY, FIONREAD, TIOCNOTTY, FICLONE, and the wrong argument.
    *[
        ("ioctl", (0, command), 0)
        for command in (0x5401, 0x5413, 0x540E, 0x541B, 0x5422, 0x40049409)
    ],
    ("ioctl", (0x5412, 0x5401, 0x5412), 0),
    # F_SETLEASE and F_SETDELEG; then F_GETFD, F_SETFL, F_SETLK, F_OFD_SETLK, F_GETLEASE,
    # F_DUPFD_CLOEXEC, F_SETPIPE_SZ and F_ADD_SEALS.
    *[("fcntl", (0, command | above), EPERM) for command in (1024, 1040) for above in (0, ABOVE)],
    *[("fcntl", (1024, command), 0) for command in (1, 4, 6, 37, 1025, 1030, 1031, 1033)],
    *[("personality", (value,), 0) for value in (0, 0xFFFFFFFF, 0xFFFFFFFF | ABOVE)],
    *[("personality", (value,), EPERM) for value in (8, 0x20000, 0x40000, 0x400000, ABOVE | 8)],
    ("prctl", (35, 1), EPERM),
    ("prctl", (35 | ABOVE, 1), EPERM),
    # PDEATHSIG, DUMPABLE, NAME, SECCOMP, SUBREAPER, NO_NEW_PRIVS, PTRACER
    *[("prctl", (option,), 0) for option in (1, 4, 15, 22, 36, 38, 0x59616D61)],
    *[("mknod", (0, kind | 0o644, 0), EPERM) for kind in (CHAR, BLOCK, DIRECTORY, 0xA000, 0xF000)],
    *[("mknod", (0, kind | 0o644, 0), 0) for kind in (0, FIFO, REGULAR, SOCKET)],
    ("mknod", (0, CHAR | 0x10000 | ABOVE, 0), EPERM),
    *[("mknodat", (0, 0, kind | 0o600, 0), EPERM) for kind in (CHAR, BLOCK, DIRECTORY)],
    *[("mknodat", (0, 0, kind | 0o600, 0), 0) for kind in (0, FIFO, REGULAR, SOCKET)],
    ("mknodat", (0, CHAR, REGULAR, CHAR), 0),
    *[
        (call, (*before, mode, 0), EPERM)
        for call, before in {**MAKERS, **CHANGERS}.items()
        for mode in (SET_UID | 0o755, SET_UID, SET_UID | SET_GID | ABOVE)
    ],
    *[(call, (*before, SET_GID | 0o755, 0), EPERM) for call, before in MAKERS.items()],
    # Directories, which pass on their group.
    *[(call, (*before, SET_GID | 0o755, 0), 0) for call, before in CHANGERS.items()],
    *[
        (call, (*before, mode | ABOVE, 0), 0)
        for call, before in {**MAKERS, **CHANGERS}.items()
        for mode in (0, 0o644, 0o1777)
    ],
    # What only opens a file has no mode: the register holds anything.
    *[("open", (0, flags, SET_UID), 0) for flags in (0, 2, CLOEXEC, 0o200000, ABOVE)],
    *[("openat", (0, 0, flags, SET_UID), 0) for flags in (0, 2, CLOEXEC, 0o200000, ABOVE)],
    *[("openat", (0, 0, flags, SET_UID), EPERM) for flags in (CREATE | CLOEXEC, TEMPORARY, 0o101)],
    *[("renameat2", (0, 0, 0, 0, flags), 0) for flags in (0, 1, 2)],
    *[("renameat2", (0, 0, 0, 0, flags), EPERM) for flags in (4, 5, 4 | ABOVE)],
    *[("socket", (family, STREAM, 0), 0) for family in (UNIX, INET, INET6)],
    *[
        ("socket", (family, kind | NONBLOCK | CLOEXEC | ABOVE, 0), 0)
        for family in (UNIX, INET, INET6, INET | ABOVE)
        for kind in (STREAM, DGRAM)
    ],
    *[("socket", (UNIX, kind, 0), 0) for kind in (SEQPACKET, RAW)],
    *[
        ("socket", (family, kind, protocol), 0)
        for family in (INET, INET6)
        for kind, protocol in ((STREAM, 6), (DGRAM, 17))
    ],
    *[
        ("socket", (family, kind, protocol), EPERM)
        for family in (INET, INET6, INET6 | ABOVE)
        for kind in (STREAM, DGRAM, DGRAM | NONBLOCK | CLOEXEC | ABOVE)
        for protocol in (1, 58, 1 | ABOVE, 58 | ABOVE)
    ],
    *[
        ("socket", (family, kind | flags, protocol), EPERM)
        for family in (INET, INET6, INET | ABOVE)
        for kind in (RAW, RDM, SEQPACKET, DCCP_TYPE, PACKET, 0, 7, 15)
        for flags in (0, NONBLOCK, CLOEXEC, ABOVE)
        for protocol in (0, 1, 6, 255)
    ],
    *[
        ("socket", (family, kind, protocol), NO_PROTOCOL)
        for family in (INET, INET6)
        for kind in (STREAM, DGRAM | CLOEXEC)
        # IGMP, DCCP, L2TP, SCTP, UDP-Lite, SMC, MPTCP
        for protocol in (2, 33, 115, 132, 136, 256, 262, 262 | ABOVE, 0xFFFFFFFF)
    ],
    *[
        ("socket", (family, kind, protocol), NO_PROTOCOL)
        for family in (INET, INET6)
        for kind in (STREAM, DGRAM)
        for protocol in range(264)
        if protocol not in {0, 1, 6, 17, 58}
    ],
    *[
        ("socket", (family, STREAM, 0), NO_FAMILY)
        for family in (0, *range(3, 10), *range(11, 16), *range(17, 64), 0xFFFFFFFF)
    ],
    *[("socket", (NETLINK, kind, 0), 0) for kind in (RAW, DGRAM, RAW | CLOEXEC)],
    *[("socket", (NETLINK, RAW, protocol), NO_PROTOCOL) for protocol in range(1, 32)],
    *[("socketpair", (UNIX, kind, 0), 0) for kind in (STREAM, DGRAM, SEQPACKET | CLOEXEC)],
    *[("socketpair", (family, STREAM, 0), NO_FAMILY) for family in (0, INET, INET6, NETLINK, 30)],
]

# name: (x86_64, aarch64). What programs live on; None where the processor has no such call.
COMMON = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None),
    "fstat": (5, 80), "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "pread64": (17, 67), "pipe": (22, None), "madvise": (28, 233),
    "shmget": (29, 194), "dup": (32, 23), "nanosleep": (35, 101), "getpid": (39, 172),
    "sendfile": (40, 71), "connect": (42, 203), "accept": (43, 202), "sendto": (44, 206),
    "sendmsg": (46, 211), "recvmsg": (47, 212), "bind": (49, 200), "listen": (50, 201),
    "setsockopt": (54, 208), "fork": (57, None), "vfork": (58, None), "execve": (59, 221),
    "exit": (60, 93), "wait4": (61, 260), "kill": (62, 129), "uname": (63, 160),
    "fcntl": (72, 25), "flock": (73, 32), "fsync": (74, 82), "getcwd": (79, 17),
    "chdir": (80, 49), "rename": (82, None), "mkdir": (83, None), "symlink": (88, None),
    "fchown": (93, 55), "umask": (95, 166),
    "gettimeofday": (96, 169), "getrlimit": (97, 163), "getuid": (102, 174), "setuid": (105, 146),
    "setpgid": (109, 154), "setsid": (112, 157), "capset": (126, 91), "sigaltstack": (131, 132),
    "statfs": (137, 43), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "mlock": (149, 228), "arch_prctl": (158, None), "setrlimit": (160, 164), "sync": (162, 81),
    "gettid": (186, 178), "setxattr": (188, 5), "futex": (202, 98), "sched_setaffinity": (203, 122),
    "getdents64": (217, 61), "timer_create": (222, 107),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "epoll_wait": (232, None), "tgkill": (234, 131), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "mq_open": (240, 180), "waitid": (247, 95),
    "inotify_add_watch": (254, 27), "newfstatat": (262, 79),
    "linkat": (265, 37), "ppoll": (271, 73), "set_robust_list": (273, 99),
    "splice": (275, 76), "utimensat": (280, 88), "epoll_pwait": (281, 22),
    "timerfd_create": (283, 85), "fallocate": (285, 47), "accept4": (288, 242),
    "eventfd2": (290, 19), "pipe2": (293, 59), "prlimit64": (302, 261), "sendmmsg": (307, 269),
    "seccomp": (317, 277), "getrandom": (318, 278), "memfd_create": (319, 279),
    "execveat": (322, 281), "membarrier": (324, 283), "copy_file_range": (326, 285),
    "statx": (332, 291), "rseq": (334, 293), "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "faccessat2": (439, 439), "epoll_pwait2": (441, 441), "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446), "memfd_secret": (447, 447), "futex_waitv": (449, 449),
    "cachestat": (451, 451), "map_shadow_stack": (453, 453),
    "statmount": (457, 457), "mseal": (462, 462), "file_getattr": (468, 468),
    "rseq_slice_yield": (471, 471),
}  # fmt: skip


# The machine.


@cache
def instructions(program):
    assert len(program) % 8 == 0
    return list(struct.iter_unpack("<HBBI", program))


def execute(program, data):
    """What the program returns for a `struct seccomp_data`. Jumps only go forward: it ends."""
    code = instructions(program)
    accumulator = at = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == RETURN:
            return value
        if operation == LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == AND:
            accumulator &= value
        elif operation == GOTO:
            at += value
        else:
            at += if_true if TESTS[operation](accumulator, value) else if_false


def judge(arch, number, args=(), *, audit=None, debug=False):
    """The errno with which a call fails; 0 when it passes."""
    audit = ARCHITECTURES[arch].audit if audit is None else audit
    words = [value & (2**64 - 1) for value in (*args, *[0] * (6 - len(args)))]
    verdict = execute(
        build(arch, debug=debug), struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *words)
    )
    if verdict == ALLOW:
        return 0
    assert verdict & ~0xFFFF == ERRNO
    return verdict & 0xFFFF


def random_arguments(count=20):
    source = random.Random(7)
    return [tuple(source.getrandbits(64) for _ in range(6)) for _ in range(count)]


# What is refused, and what passes.


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize("arch", ARCHS)
def test_refused_whatever_the_arguments(arch, debug):
    numbers = ARCHITECTURES[arch].numbers
    for answer, names in REFUSED.items():
        for name in names.split():
            if arch == "aarch64" and name in NOT_ON_AARCH64:
                assert name not in numbers
                continue
            for args in ((), (2**64 - 1,) * 6, *random_arguments()):
                assert judge(arch, numbers[name], args, debug=debug) == answer, (name, args)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", DEBUG)
def test_debuggers_are_refused_unless_asked_for(arch, name):
    number = ARCHITECTURES[arch].numbers[name]
    for args in random_arguments():
        assert judge(arch, number, args) == EPERM
        assert judge(arch, number, args, debug=True) == 0


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize("arch", ARCHS)
def test_judged_by_arguments(arch, debug):
    numbers = ARCHITECTURES[arch].numbers
    for name, args, answer in JUDGED:
        if arch == "aarch64" and name in NOT_ON_AARCH64:
            continue
        assert judge(arch, numbers[name], args, debug=debug) == answer, (name, args)


def test_every_rule_is_tried_here():
    tried = {*DEBUG, *(name for name, _, answer in JUDGED if answer)}
    tried.update(name for names in REFUSED.values() for name in names.split())
    assert {call for rule in seccomp.RULES for call in rule.calls} == tried
    assert all(rule.why for rule in seccomp.RULES)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_rule_has_its_number(arch):
    ruled = {call for rule in seccomp.RULES for call in rule.calls}
    missing = NOT_ON_AARCH64 if arch == "aarch64" else set()
    assert set(ARCHITECTURES[arch].numbers) == ruled - missing


@pytest.mark.parametrize("arch", ARCHS)
def test_common_calls_pass(arch):
    for name, numbers in COMMON.items():
        number = numbers[ARCHS.index(arch)]
        if number is not None:
            for args in ((), (2**64 - 1,) * 6, *random_arguments()):
                assert judge(arch, number, args) == 0, (name, args)


@pytest.mark.parametrize("arch", ARCHS)
def test_all_that_is_not_named_passes(arch):
    """Among the numbers that exist, nothing else is refused by mistake."""
    known = ARCHITECTURES[arch]
    named = set(known.numbers.values()).union(*known.gaps)
    for number in range(known.highest + 1):
        if number not in named:
            assert judge(arch, number) == 0, number


# Other ways into the kernel.


@pytest.mark.parametrize("arch", ARCHS)
def test_other_architectures_are_refused(arch):
    others = {known.audit for known in ARCHITECTURES.values()} | {AUDIT_I386, AUDIT_ARM, 0}
    for audit in others - {ARCHITECTURES[arch].audit}:
        for number in range(600):
            assert judge(arch, number, audit=audit) == ENOSYS


@pytest.mark.parametrize("arch", ARCHS)
def test_x32_calls_are_refused(arch):
    for number in range(600):
        assert judge(arch, number | X32_BIT) == ENOSYS


@pytest.mark.parametrize("arch", ARCHS)
def test_calls_of_tomorrow_are_refused(arch):
    known = ARCHITECTURES[arch]
    gaps = [number for gap in known.gaps for number in gap]
    assert gaps
    for number in (*gaps, *range(known.highest + 1, 600), 0x7FFFFFFF, 0x80000000, -1):
        assert judge(arch, number) == ENOSYS, number
    for gap in known.gaps:
        assert judge(arch, gap.start - 1) in (0, EPERM)
        assert judge(arch, gap.stop) == 0


@pytest.mark.parametrize("arch", ["i686", "riscv64", "aarch64_be", "armv7l", ""])
def test_unknown_machine_gets_no_filter(arch):
    with pytest.raises(IsolationError, match=f"`{arch}`"):
        build(arch)


# The program as such.


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize("arch", ARCHS)
def test_program_keeps_the_kernels_rules(arch, debug):
    code = instructions(build(arch, debug=debug))
    assert len(code) < 400
    assert code[-1][0] == RETURN
    for at, (operation, if_true, if_false, value) in enumerate(code):
        if operation == GOTO:
            assert at + 1 + value < len(code)
        elif operation in TESTS:
            assert at + 1 + max(if_true, if_false) < len(code)
        elif operation == LOAD:
            assert value % 4 == 0
            assert value < 64
        else:
            assert operation in {AND, RETURN}


@given(
    arch=st.sampled_from(ARCHS),
    debug=st.booleans(),
    audit=st.none() | st.integers(0, 2**32 - 1),
    number=st.integers(0, 600) | st.integers(0, 2**32 - 1),
    args=st.lists(st.integers(0, 70) | st.integers(0, 2**64 - 1), max_size=6),
)
def test_every_call_gets_an_answer(arch, debug, audit, number, args):
    answer = judge(arch, number, tuple(args), audit=audit, debug=debug)
    assert answer in {0, EINVAL, EPERM, ENOSYS, NO_FAMILY, NO_PROTOCOL}


@given(values=st.lists(st.integers(0, 2**32 - 1), max_size=6), number=st.integers(0, 471))
def test_debug_only_lifts(values, number):
    for arch in ARCHS:
        plain, debug = (judge(arch, number, tuple(values), debug=flag) for flag in (False, True))
        lifted = {ARCHITECTURES[arch].numbers[name] for name in DEBUG}
        assert debug == (0 if number in lifted else plain)


@pytest.mark.parametrize("padding", [0, 1, 253, 254, 255, 256, 300, 1000])
def test_branches_reach_any_label(padding):
    """Each of the branches is as far from its label as the next one from its own."""
    filler = [Plain(AND, 0xFFFFFFFF)] * padding
    branches = [Branch(0x15, value, f"found {value}") for value in range(5)]
    ends = [
        line for value in range(5) for line in (Label(f"found {value}"), Plain(RETURN, 100 + value))
    ]
    program = assemble(
        [Plain(LOAD, 0), *branches, *filler, Goto("end"), *ends, Label("end"), Plain(RETURN, 7)]
    )
    answers = [execute(program, struct.pack("<16I", number, *[0] * 15)) for number in range(6)]
    assert answers == [100, 101, 102, 103, 104, 7]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([Goto("nowhere"), Plain(RETURN, 0)], "no label `nowhere`"),
        ([Label("back"), Goto("back"), Plain(RETURN, 0)], "no label `back` ahead"),
        ([Label("twice"), Label("twice"), Plain(RETURN, 0)], "two labels `twice`"),
        ([Plain(RETURN, 0)] * 4097, "4097 instructions"),
    ],
)
def test_what_the_kernel_would_not_take_is_reported(lines, message):
    with pytest.raises(ValueError, match=message):
        assemble(lines)


# The numbers.


@pytest.fixture(scope="module")
def resolve():
    """`resolve("x86_64", "ptrace")`: libseccomp's number; None when this version knows no such."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        reason = "needs `libseccomp.so.2`, which is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    def number(arch, name):
        found = library.seccomp_syscall_resolve_name_arch(
            ctypes.c_uint32(ARCHITECTURES[arch].audit), name.encode()
        )
        return None if found == -1 else found

    return number


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_are_those_of_libseccomp(arch, resolve):
    numbers = ARCHITECTURES[arch].numbers
    theirs = {name: resolve(arch, name) for name in numbers}
    # Newer than the library may be.
    unknown = {name for name, number in theirs.items() if number is None}
    assert unknown <= {"mount_setattr", "quotactl_fd", "open_tree_attr", "listns"}
    assert {name: number for name, number in numbers.items() if name not in unknown} == {
        name: number for name, number in theirs.items() if name not in unknown
    }


def test_what_aarch64_lacks_is_lacking(resolve):
    # The library has negative numbers for calls of other processors only.
    assert all(resolve("aarch64", name) < 0 for name in NOT_ON_AARCH64)


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_of_common_calls_are_those_of_libseccomp(arch, resolve):
    for name, numbers in COMMON.items():
        theirs, ours = resolve(arch, name), numbers[ARCHS.index(arch)]
        assert theirs is None or theirs == ours or (ours is None and theirs < 0), name
