"""Numbers of system calls, per architecture: those that the filter names, and where they end.

Facts of the kernel's binary interface, which never change once they are released. A test compares
them with what libseccomp knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Architecture(NamedTuple):
    """What the filter has to know about a processor's system calls."""

    audit: int
    """The kernel's name for it (`AUDIT_ARCH_…`); other system call interfaces have other values."""
    numbers: Mapping[str, int]
    gaps: tuple[range, ...]
    """Unassigned numbers below `highest`, when this was written."""
    highest: int
    """The last number in this table; higher ones belong to future kernels."""


# Since Linux 5.0 new calls get the same number everywhere.
_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "fchmodat2": 452,
    "open_tree_attr": 467,
    "listns": 470,
}
_HIGHEST = 471  # rseq_slice_yield, of Linux 7.0

_X86_64 = {
    "open": 2,
    "ioctl": 16,
    "socket": 41,
    "socketpair": 53,
    "clone": 56,
    "fcntl": 72,
    "creat": 85,
    "chmod": 90,
    "fchmod": 91,
    "ptrace": 101,
    "syslog": 103,
    "mknod": 133,
    "uselib": 134,
    "personality": 135,
    "sysfs": 139,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "_sysctl": 156,
    "prctl": 157,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "io_setup": 206,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "openat": 257,
    "mknodat": 259,
    "fchmodat": 268,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "renameat2": 316,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}

# Without the calls that were history before the processor was made: there is no mknod beside
# mknodat, no port of a PC, no segment.
_AARCH64 = {
    "io_setup": 0,
    "lookup_dcookie": 18,
    "fcntl": 25,
    "ioctl": 29,
    "mknodat": 33,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "chroot": 51,
    "fchmod": 52,
    "fchmodat": 53,
    "openat": 56,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "personality": 92,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "prctl": 167,
    "settimeofday": 170,
    "adjtimex": 171,
    "socket": 198,
    "socketpair": 199,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "renameat2": 276,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}

ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        numbers={**_X86_64, **_EVERYWHERE},
        # 335 and 336 are the kernel's own, for probes; what comes after may be given out some day.
        gaps=(range(337, 424),),
        highest=_HIGHEST,
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        numbers={**_AARCH64, **_EVERYWHERE},
        # 403 to 423 are 32-bit calls.
        gaps=(range(244, 260), range(295, 424)),
        highest=_HIGHEST,
    ),
}
