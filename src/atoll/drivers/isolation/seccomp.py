"""The filter on system calls of level `sandbox`: a list of refusals, as a program for the kernel.

A capsule's walls are its namespaces and its mounts. The filter takes away what could weaken them
from inside, what has no namespace, and parts of the kernel that programs at work do not need and
that have let attackers out before. Everything else passes.

A refused call fails as on a machine that lacks it, and nothing is killed: programs know how to go
on without. Only registers can be judged: what a pointer points to could change between the look
and the act. Where several filters apply, the most severe answer counts, so that none which a
payload adds (its own sandbox, a listener for its children) can lift a refusal of this one.
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


class Match(NamedTuple):
    """True when the masked argument is among the values; with `negated`, when it is not.

    One 32-bit half is looked at. For most arguments that is all the kernel sees, because they are
    of C's type int; what stands above must neither hide a value nor make one.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = _WORD
    negated: bool = False
    high: bool = False


class Rule(NamedTuple):
    """Calls that are refused: always, or when all of the matches are true."""

    names: str
    answer: int
    why: str
    matches: tuple[Match, ...] = ()
    debug_lifts: bool = False

    @property
    def calls(self) -> list[str]:
        return self.names.split()


def _only(argument: int, *values: int, mask: int = _WORD, high: bool = False) -> Match:
    """For a rule that refuses everything but these values."""
    return Match(argument, values, mask, negated=True, high=high)


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
# O_CREAT and O_TMPFILE; without them the mode is whatever the register held.
_MAKES_A_FILE = 0o100 | 0o20000000
_SET_ID = _S_ISUID | _S_ISGID
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_INTERNET = Match(0, (_AF_INET, _AF_INET6))
# As the kernel does it: SOCK_NONBLOCK and SOCK_CLOEXEC lie above the type.
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_DGRAM = 0xF, 1, 2
_IP, _ICMP, _TCP, _UDP, _ICMPV6 = 0, 1, 6, 17, 58

RULES: tuple[Rule, ...] = (
    Rule(
        "io_uring_setup io_uring_enter io_uring_register",
        errno.ENOSYS,
        "its requests are done by the kernel itself, past this filter",
    ),
    Rule(
        "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp",
        errno.EPERM,
        "reads and steers other processes; only debuggers need it",
        debug_lifts=True,
    ),
    Rule("add_key request_key keyctl", errno.EPERM, "key rings are not divided by namespaces"),
    Rule("bpf", errno.EPERM, "loads programs into the kernel"),
    Rule("perf_event_open", errno.EPERM, "watches the whole machine; a wide attack surface"),
    Rule("userfaultfd", errno.EPERM, "stops the kernel amid its work, which helps exploits"),
    Rule("kexec_load kexec_file_load reboot", errno.EPERM, "replaces or ends the running kernel"),
    Rule("init_module finit_module delete_module", errno.EPERM, "changes the running kernel"),
    Rule(
        "name_to_handle_at open_by_handle_at",
        errno.EPERM,
        "opens files by number, past the tree that is mounted",
    ),
    Rule("mount umount2 pivot_root chroot", errno.EPERM, "changes the tree that walls off files"),
    Rule(
        "fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr",
        errno.EPERM,
        "the new ways to change that tree",
    ),
    Rule("setns", errno.EPERM, "enters another namespace"),
    Rule(
        "unshare",
        errno.EPERM,
        "a namespace of one's own brings privileges, and kernel code that only root reached before",
        (_only(0, 0, mask=_WORD & ~_UNSHARE_PLAIN),),
    ),
    Rule("unshare", errno.EPERM, "flags that no kernel knows yet", (_only(0, 0, high=True),)),
    # With `unshare(CLONE_FILES)`, which is refused above: the descriptors of a process are one
    # table, so that they can be counted and each process has no more than its limit.
    Rule(
        "clone",
        errno.EPERM,
        "a thread with descriptors of its own, which no limit counts",
        (Match(0, (_CLONE_THREAD,), mask=_CLONE_THREAD | _CLONE_FILES),),
    ),
    Rule(
        "close_range",
        errno.EINVAL,
        "descriptors of a thread's own, as with clone",
        (_only(2, 0, mask=_CLOSE_RANGE_UNSHARE),),
    ),
    # Databases fall back to other ways of writing on this answer.
    Rule("io_setup", errno.ENOSYS, "takes of what all users of the machine have together"),
    Rule(
        "clone",
        errno.EPERM,
        "a namespace of one's own, as with unshare",
        (_only(0, 0, mask=_CLONE_NEW),),
    ),
    # Every libc falls back to clone on this very answer.
    Rule("clone3", errno.ENOSYS, "its flags lie behind a pointer, where no filter sees them"),
    Rule("listns", errno.ENOSYS, "lists namespaces; nothing in a capsule has a use for it"),
    Rule(
        "ioctl",
        errno.EPERM,
        "types into the terminal, pastes on the console, changes how the kernel reads a line",
        (Match(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD)),),
    ),
    Rule(
        "fcntl",
        errno.EPERM,
        "a lease makes everybody wait who opens the file, outside too: 45 s, again and again",
        (Match(1, (_F_SETLEASE, _F_SETDELEG)),),
    ),
    Rule(
        "personality",
        errno.EPERM,
        "old ways of the kernel, and memory without random places; asking for it passes",
        (_only(0, 0, _WORD),),
    ),
    Rule(
        "prctl",
        errno.EPERM,
        "rewrites what the kernel tells others about this process",
        (Match(0, (_PR_SET_MM,)),),
    ),
    Rule("swapon swapoff", errno.EPERM, "the machine's memory"),
    Rule("acct", errno.EPERM, "writes a record of every process of the machine"),
    Rule("quotactl quotactl_fd", errno.EPERM, "limits of the host's filesystems"),
    # vm86 exists in 32-bit calls only, which are all refused.
    Rule("iopl ioperm modify_ldt", errno.EPERM, "ports of the machine, odd segments"),
    # adjtimex also reads, but whether it does lies behind a pointer; only time daemons ask.
    Rule(
        "clock_settime clock_adjtime settimeofday adjtimex",
        errno.EPERM,
        "the machine's clock has no namespace",
    ),
    Rule("sethostname setdomainname", errno.EPERM, "the name that the capsule was given"),
    Rule("syslog", errno.EPERM, "the kernel's log tells addresses, and what others do"),
    Rule(
        "lookup_dcookie nfsservctl uselib sysfs _sysctl vhangup",
        errno.EPERM,
        "leftovers that nothing uses",
    ),
    # mbind and set_mempolicy pass: databases place their own memory with them.
    Rule("migrate_pages move_pages", errno.EPERM, "places the memory of other processes"),
    Rule("fanotify_init", errno.EPERM, "watches whole filesystems"),
    Rule(
        "mknod",
        errno.EPERM,
        "devices, and the marks by which layers hide files; pipes and sockets pass",
        (_only(1, 0, _S_IFREG, _S_IFIFO, _S_IFSOCK, mask=_S_IFMT),),
    ),
    Rule(
        "mknodat",
        errno.EPERM,
        "as mknod",
        (_only(2, 0, _S_IFREG, _S_IFIFO, _S_IFSOCK, mask=_S_IFMT),),
    ),
    Rule(
        "mknod creat",
        errno.EPERM,
        "a file that runs as its owner: outside that is the owner of the capsule",
        (_only(1, 0, mask=_SET_ID),),
    ),
    Rule("mknodat", errno.EPERM, "as mknod", (_only(2, 0, mask=_SET_ID),)),
    # S_ISGID passes here: these change directories, too, for which it means that new files get the
    # directory's group. `git init --shared`, and copies of such directories, fail without it.
    Rule("chmod fchmod", errno.EPERM, "as mknod", (_only(1, 0, mask=_S_ISUID),)),
    Rule("fchmodat fchmodat2", errno.EPERM, "as mknod", (_only(2, 0, mask=_S_ISUID),)),
    Rule(
        "open",
        errno.EPERM,
        "as mknod",
        (_only(1, 0, mask=_MAKES_A_FILE), _only(2, 0, mask=_SET_ID)),
    ),
    Rule(
        "openat",
        errno.EPERM,
        "as mknod",
        (_only(2, 0, mask=_MAKES_A_FILE), _only(3, 0, mask=_SET_ID)),
    ),
    # Programs that know it fall back to openat on this very answer.
    Rule("openat2", errno.ENOSYS, "its mode lies behind a pointer, where no filter sees it"),
    Rule(
        "renameat2",
        errno.EPERM,
        "with RENAME_WHITEOUT it leaves behind the mark that mknod may not make",
        (_only(4, 0, mask=_RENAME_WHITEOUT),),
    ),
    Rule(
        "socket",
        errno.EAFNOSUPPORT,
        "families without a namespace (the host of a virtual machine, ciphers, Bluetooth) or with "
        "a bad record",
        (_only(0, _AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK),),
    ),
    Rule(
        "socket",
        errno.EPROTONOSUPPORT,
        "of the sockets to the kernel only the one that lists addresses and routes",
        (Match(0, (_AF_NETLINK,)), _only(2, _NETLINK_ROUTE)),
    ),
    Rule(
        "socket",
        errno.EPERM,
        "raw packets, and types of protocols that are refused anyway",
        (_INTERNET, _only(1, _SOCK_STREAM, _SOCK_DGRAM, mask=_SOCK_TYPE_MASK)),
    ),
    Rule(
        "socket",
        errno.EPERM,
        "pings: packets that no proxy sees, and a way to carry data out",
        (_INTERNET, Match(2, (_ICMP, _ICMPV6))),
    ),
    Rule(
        "socket",
        errno.EPROTONOSUPPORT,
        "SCTP, DCCP, MPTCP, UDP-Lite and the like: seldom used, seldom looked at",
        (_INTERNET, _only(2, _IP, _TCP, _UDP)),
    ),
    Rule(
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
        raise IsolationError(f"no filter on system calls for `{arch}`; there is one for {known}")
    return assemble(tuple(_lines(architecture, debug=debug)))


def _lines(architecture: Architecture, *, debug: bool) -> Iterator[Line]:
    rules: dict[str, list[Rule]] = {}
    for rule in RULES:
        for call in rule.calls:
            if call in architecture.numbers and not (debug and rule.debug_lifts):
                rules.setdefault(call, []).append(rule)
    answers = sorted({rule.answer for rule in RULES} | {errno.ENOSYS})

    # 32-bit calls on a 64-bit kernel (`int 0x80`) have other numbers: none of them is judged.
    yield Plain(LOAD, _ARCHITECTURE_AT)
    yield Branch(EQUAL, architecture.audit, "numbers")
    yield Goto(_label(errno.ENOSYS))
    yield Label("numbers")
    yield Plain(LOAD, _NUMBER_AT)
    # What a call of tomorrow's kernel does is unknown today, and a list of refusals would let it
    # pass. It does not exist here until somebody has read about it and raised `highest`; programs
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


def _judge(call: str, rules: Sequence[Rule]) -> Iterator[Line]:
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
