"""The seccomp filter of level `sandbox`: a list of refused system calls, as a BPF program.

A capsule is isolated by namespaces and mounts. The filter refuses calls that could weaken them from
inside, calls without a namespace, and kernel features that ordinary programs do not need and that
exploits have used. Everything else passes.

A refused call fails as on a machine that lacks it, and nothing is killed: programs can continue
without it. Only registers can be checked: memory behind a pointer could change between the check
and the call. Where several filters apply, the most severe result counts, so that no filter that a
program adds (its own sandbox, a listener for its children) can lift a refusal of this one.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from atoll.drivers.isolation.bpf import (
    ABOVE,
    AND,
    EQUAL,
    FROM,
    LOAD,
    RETURN,
    Branch,
    Goto,
    Label,
    Line,
    Plain,
    assemble,
)
from atoll.drivers.isolation.syscalls import ARCHITECTURES, Architecture
from atoll.model.errors import IsolationError

# The rules, in words.

_WORD = 0xFFFFFFFF


class ArgumentMatch(NamedTuple):
    """True when the masked argument is among the values; with `negated`, when it is not.

    One 32-bit half is compared. For most arguments the kernel uses only that half, because they are
    of C's type int; the other half must neither hide a value nor add one.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = _WORD
    negated: bool = False
    high: bool = False


class SyscallRule(NamedTuple):
    """Calls that are refused: always, or when all of the matches are true."""

    names: str
    answer: int
    why: str
    matches: tuple[ArgumentMatch, ...] = ()
    debug_lifts: bool = False

    @property
    def calls(self) -> list[str]:
        return self.names.split()


def _only(argument: int, *values: int, mask: int = _WORD, high: bool = False) -> ArgumentMatch:
    """For a rule that refuses everything but these values."""
    return ArgumentMatch(argument, values, mask, negated=True, high=high)


# Namespaces: NEWNS, CGROUP, UTS, IPC, USER, PID and NET. NEWTIME has the value of a signal in
# `clone`, and can only be had from `unshare`.
_CLONE_NEW = 0x7E020000
# VM, FS, SIGHAND, THREAD and SYSVSEM: what a thread may stop to share with its siblings.
_UNSHARE_PLAIN = 0x00050B00
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_CLOSE_RANGE_UNSHARE = 2
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_PR_SET_MM = 35
_F_SETLEASE, _F_SETDELEG = 1024, 1040
_RENAME_WHITEOUT = 4
_S_IFMT, _S_IFIFO, _S_IFREG, _S_IFSOCK = 0xF000, 0x1000, 0x8000, 0xC000
_S_ISUID, _S_ISGID = 0o4000, 0o2000
# O_CREAT and O_TMPFILE; without them the mode argument is undefined.
_MAKES_A_FILE = 0o100 | 0o20000000
_SET_ID = _S_ISUID | _S_ISGID
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_INTERNET = ArgumentMatch(0, (_AF_INET, _AF_INET6))
# As the kernel does it: SOCK_NONBLOCK and SOCK_CLOEXEC are bits above the type.
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_DGRAM = 0xF, 1, 2
_IP, _ICMP, _TCP, _UDP, _ICMPV6 = 0, 1, 6, 17, 58

RULES: tuple[SyscallRule, ...] = (
    SyscallRule(
        "io_uring_setup io_uring_enter io_uring_register",
        errno.ENOSYS,
        "its requests are done by the kernel itself, past this filter",
    ),
    SyscallRule(
        "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp",
        errno.EPERM,
        "reads and steers other processes; only debuggers need it",
        debug_lifts=True,
    ),
    SyscallRule(
        "add_key request_key keyctl", errno.EPERM, "key rings are not divided by namespaces"
    ),
    SyscallRule("bpf", errno.EPERM, "loads programs into the kernel"),
    SyscallRule("perf_event_open", errno.EPERM, "watches the whole machine; a wide attack surface"),
    SyscallRule("userfaultfd", errno.EPERM, "stops the kernel amid its work, which helps exploits"),
    SyscallRule(
        "kexec_load kexec_file_load reboot", errno.EPERM, "replaces or ends the running kernel"
    ),
    SyscallRule(
        "init_module finit_module delete_module", errno.EPERM, "changes the running kernel"
    ),
    SyscallRule(
        "name_to_handle_at open_by_handle_at",
        errno.EPERM,
        "opens files by number, past the tree that is mounted",
    ),
    SyscallRule(
        "mount umount2 pivot_root chroot", errno.EPERM, "changes the tree that walls off files"
    ),
    SyscallRule(
        "fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr",
        errno.EPERM,
        "the new ways to change that tree",
    ),
    SyscallRule("setns", errno.EPERM, "enters another namespace"),
    SyscallRule(
        "unshare",
        errno.EPERM,
        "a namespace of one's own brings privileges, and kernel code that only root reached before",
        (_only(0, 0, mask=_WORD & ~_UNSHARE_PLAIN),),
    ),
    SyscallRule(
        "unshare", errno.EPERM, "flags that no kernel knows yet", (_only(0, 0, high=True),)
    ),
    # With `unshare(CLONE_FILES)`, which is refused above: the descriptors of a process are one
    # table, so that they can be counted and each process has no more than its limit.
    SyscallRule(
        "clone",
        errno.EPERM,
        "a thread with descriptors of its own, which no limit counts",
        (ArgumentMatch(0, (_CLONE_THREAD,), mask=_CLONE_THREAD | _CLONE_FILES),),
    ),
    SyscallRule(
        "close_range",
        errno.EINVAL,
        "descriptors of a thread's own, as with clone",
        (_only(2, 0, mask=_CLOSE_RANGE_UNSHARE),),
    ),
    # Databases fall back to other ways of writing on this error.
    SyscallRule("io_setup", errno.ENOSYS, "takes of what all users of the machine have together"),
    SyscallRule(
        "clone",
        errno.EPERM,
        "a namespace of one's own, as with unshare",
        (_only(0, 0, mask=_CLONE_NEW),),
    ),
    # Every libc falls back to clone on this error.
    SyscallRule(
        "clone3", errno.ENOSYS, "its flags are behind a pointer, which filters cannot read"
    ),
    SyscallRule("listns", errno.ENOSYS, "lists namespaces; nothing in a capsule has a use for it"),
    SyscallRule(
        "ioctl",
        errno.EPERM,
        "types into the terminal, pastes on the console, changes how the kernel reads a line",
        (ArgumentMatch(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD)),),
    ),
    SyscallRule(
        "fcntl",
        errno.EPERM,
        "a lease delays every process that opens the file, outside too, by 45 s each time",
        (ArgumentMatch(1, (_F_SETLEASE, _F_SETDELEG)),),
    ),
    SyscallRule(
        "personality",
        errno.EPERM,
        "old ways of the kernel, and memory without random places; asking for it passes",
        (_only(0, 0, _WORD),),
    ),
    SyscallRule(
        "prctl",
        errno.EPERM,
        "rewrites what other processes see of this one",
        (ArgumentMatch(0, (_PR_SET_MM,)),),
    ),
    SyscallRule("swapon swapoff", errno.EPERM, "the machine's memory"),
    SyscallRule("acct", errno.EPERM, "writes a record of every process of the machine"),
    SyscallRule("quotactl quotactl_fd", errno.EPERM, "limits of the host's filesystems"),
    # vm86 exists in 32-bit calls only, which are all refused.
    SyscallRule("iopl ioperm modify_ldt", errno.EPERM, "ports of the machine, odd segments"),
    # adjtimex also reads, but that is behind a pointer; only time daemons call it.
    SyscallRule(
        "clock_settime clock_adjtime settimeofday adjtimex",
        errno.EPERM,
        "the machine's clock has no namespace",
    ),
    SyscallRule("sethostname setdomainname", errno.EPERM, "the name that the capsule was given"),
    SyscallRule("syslog", errno.EPERM, "the kernel's log reveals addresses and activity"),
    SyscallRule(
        "lookup_dcookie nfsservctl uselib sysfs _sysctl vhangup",
        errno.EPERM,
        "leftovers that nothing uses",
    ),
    # mbind and set_mempolicy pass: databases place their own memory with them.
    SyscallRule("migrate_pages move_pages", errno.EPERM, "places the memory of other processes"),
    SyscallRule("fanotify_init", errno.EPERM, "watches whole filesystems"),
    SyscallRule(
        "mknod",
        errno.EPERM,
        "devices, and the marks by which layers hide files; pipes and sockets pass",
        (_only(1, 0, _S_IFREG, _S_IFIFO, _S_IFSOCK, mask=_S_IFMT),),
    ),
    SyscallRule(
        "mknodat",
        errno.EPERM,
        "as mknod",
        (_only(2, 0, _S_IFREG, _S_IFIFO, _S_IFSOCK, mask=_S_IFMT),),
    ),
    SyscallRule(
        "mknod creat",
        errno.EPERM,
        "a file that runs as its owner: outside that is the owner of the capsule",
        (_only(1, 0, mask=_SET_ID),),
    ),
    SyscallRule("mknodat", errno.EPERM, "as mknod", (_only(2, 0, mask=_SET_ID),)),
    # S_ISGID passes here: these change directories, too, for which it means that new files get the
    # directory's group. `git init --shared`, and copies of such directories, fail without it.
    SyscallRule("chmod fchmod", errno.EPERM, "as mknod", (_only(1, 0, mask=_S_ISUID),)),
    SyscallRule("fchmodat fchmodat2", errno.EPERM, "as mknod", (_only(2, 0, mask=_S_ISUID),)),
    SyscallRule(
        "open",
        errno.EPERM,
        "as mknod",
        (_only(1, 0, mask=_MAKES_A_FILE), _only(2, 0, mask=_SET_ID)),
    ),
    SyscallRule(
        "openat",
        errno.EPERM,
        "as mknod",
        (_only(2, 0, mask=_MAKES_A_FILE), _only(3, 0, mask=_SET_ID)),
    ),
    # Programs that use it fall back to openat on this error.
    SyscallRule("openat2", errno.ENOSYS, "its mode is behind a pointer, which filters cannot read"),
    SyscallRule(
        "renameat2",
        errno.EPERM,
        "with RENAME_WHITEOUT it leaves behind the mark that mknod may not make",
        (_only(4, 0, mask=_RENAME_WHITEOUT),),
    ),
    SyscallRule(
        "socket",
        errno.EAFNOSUPPORT,
        "families without a namespace (the host of a virtual machine, ciphers, Bluetooth) or with "
        "a bad record",
        (_only(0, _AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK),),
    ),
    SyscallRule(
        "socket",
        errno.EPROTONOSUPPORT,
        "of the sockets to the kernel only the one that lists addresses and routes",
        (ArgumentMatch(0, (_AF_NETLINK,)), _only(2, _NETLINK_ROUTE)),
    ),
    SyscallRule(
        "socket",
        errno.EPERM,
        "raw packets, and types of protocols that are refused anyway",
        (_INTERNET, _only(1, _SOCK_STREAM, _SOCK_DGRAM, mask=_SOCK_TYPE_MASK)),
    ),
    SyscallRule(
        "socket",
        errno.EPERM,
        "pings: packets that no proxy sees, and a way to carry data out",
        (_INTERNET, ArgumentMatch(2, (_ICMP, _ICMPV6))),
    ),
    SyscallRule(
        "socket",
        errno.EPROTONOSUPPORT,
        "SCTP, DCCP, MPTCP, UDP-Lite and the like: seldom used, seldom looked at",
        (_INTERNET, _only(2, _IP, _TCP, _UDP)),
    ),
    SyscallRule(
        "socketpair",
        errno.EAFNOSUPPORT,
        "only local sockets come in pairs",
        (_only(0, _AF_UNIX),),
    ),
)

# From rules to lines.

_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


@cache
def build(arch: str, *, debug: bool = False) -> bytes:
    """The filter for `bwrap --seccomp`, on a machine that `uname -m` calls `arch`.

    With `debug`, debuggers work inside. Raises IsolationError for other architectures.
    """
    architecture = ARCHITECTURES.get(arch)
    if architecture is None:
        known = " and ".join(f"`{name}`" for name in sorted(ARCHITECTURES))
        raise IsolationError(f"no seccomp filter for `{arch}`; supported: {known}")
    return assemble(tuple(_lines(architecture, debug=debug)))


def _lines(architecture: Architecture, *, debug: bool) -> Iterator[Line]:
    rules: dict[str, list[SyscallRule]] = {}
    for rule in RULES:
        for call in rule.calls:
            if call in architecture.numbers and not (debug and rule.debug_lifts):
                rules.setdefault(call, []).append(rule)
    answers = sorted({rule.answer for rule in RULES} | {errno.ENOSYS})

    # 32-bit calls on a 64-bit kernel (`int 0x80`) have other numbers and are not checked.
    yield Plain(LOAD, _ARCHITECTURE_AT)
    yield Branch(EQUAL, architecture.audit, "numbers")
    yield Goto(_label(errno.ENOSYS))
    yield Label("numbers")
    yield Plain(LOAD, _NUMBER_AT)
    # What a call of tomorrow's kernel does is unknown today, and a list of refusals would let it
    # pass. It does not exist here until it was reviewed and `highest` raised; programs
    # cope, since it does not exist on older kernels, either. The x32 calls, which carry a bit
    # above all numbers, end here too.
    yield Branch(ABOVE, architecture.highest, _label(errno.ENOSYS))
    for index, gap in enumerate(architecture.gaps):
        yield Branch(ABOVE, gap.stop - 1, f"after gap {index}")
        yield Branch(FROM, gap.start, _label(errno.ENOSYS))
        yield Label(f"after gap {index}")
    # One after the other: kernels since 5.11 remember which numbers always pass, and do not run
    # the program for them.
    for call in sorted(rules, key=architecture.numbers.__getitem__):
        plain = [rule for rule in rules[call] if not rule.matches]
        target = _label(plain[0].answer) if plain else call
        yield Branch(EQUAL, architecture.numbers[call], target)
    yield Goto("allow")
    for call, judged in rules.items():
        if all(rule.matches for rule in judged):
            yield Label(call)
            yield from _judge(call, judged)
    for answer in answers:
        yield Label(_label(answer))
        yield Plain(RETURN, _ERRNO | answer)
    yield Label("allow")
    yield Plain(RETURN, _ALLOW)


def _judge(call: str, rules: Sequence[SyscallRule]) -> Iterator[Line]:
    """The first rule whose matches are all true gives the answer; without one the call passes."""
    for index, rule in enumerate(rules):
        otherwise = f"{call} after {index}"
        for step, match in enumerate(rule.matches):
            true = f"{call} {index}.{step}"
            yield Plain(LOAD, _ARGUMENTS_AT + 8 * match.argument + 4 * match.high)
            if match.mask != _WORD:
                yield Plain(AND, match.mask)
            for value in match.values:
                yield Branch(EQUAL, value, otherwise if match.negated else true)
            if not match.negated:
                yield Goto(otherwise)
            yield Label(true)
        yield Goto(_label(rule.answer))
        yield Label(otherwise)
    yield Goto("allow")


def _label(answer: int) -> str:
    return errno.errorcode[answer]
