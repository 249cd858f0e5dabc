"""Attempts on the wall around the kernel's interfaces.

Calls that would change the machine get invalid arguments: an error about the arguments shows that
the check for privileges was passed.
"""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

_SWITCHES = (
    WallTest("P09", "set programs that the kernel starts (core_pattern, modprobe)", """
names = "core_pattern", "modprobe", "hotplug", "poweroff_cmd", "usermodehelper/bset"
each(names, lambda name: open_to_write("/proc/sys/kernel/" + name))
""", "root"),
    WallTest("P09b", "register a binfmt interpreter or a uevent helper", """
each(("/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper",
      "/proc/sys/fs/suid_dumpable", "/proc/sys/kernel/ns_last_pid"), open_to_write)
""", "root"),
    WallTest("P10", "change sysctl settings", """
opened = []
for path in glob.glob("/proc/sys/**", recursive=True):
    if os.path.isfile(path):
        try:
            open_to_write(path)
            opened.append(path)
        except OSError as error:
            refusal = error
if opened:
    gave_way("%d of them, such as %s" % (len(opened), opened[0]))
raise refusal
""", "root"),
    WallTest("P10b", "write to sysrq and other control files of the kernel", """
each(("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/mtrr",
      "/proc/sys/kernel/sysrq", "/proc/sys/vm/drop_caches", "/proc/acpi/wakeup"), open_to_write)
""", "root"),
    WallTest("P11", "change the host name", """
name = os.uname().nodename.encode()
call("sethostname", name, len(name))
""", "lax"),
    WallTest("P33", "set the clock", """
ADJ_TICK = 0x4000
gave_way(allowed("adjtimex", buffer(struct.pack("I", ADJ_TICK) + bytes(204))))
""", "root"),
    WallTest("P33b", "read the kernel log", """
SYSLOG_ACTION_SIZE_BUFFER = 10
call("syslog", SYSLOG_ACTION_SIZE_BUFFER, 0, 0)
""", "root"),
)  # fmt: skip

_CALLS = (
    WallTest("P12", "open an io_uring", """
os.close(call("io_uring_setup", 1, buffer(bytes(120))))
"""),
    WallTest("P13", "create BPF objects", """
BPF_MAP_CREATE, BPF_MAP_TYPE_ARRAY = 0, 2
wish = struct.pack("4I", BPF_MAP_TYPE_ARRAY, 4, 4, 1) + bytes(112)
os.close(call("bpf", BPF_MAP_CREATE, buffer(wish), len(wish)))
""", "root"),
    WallTest("P14", "open performance counters (perf_event_open)", """
SOFTWARE, DUMMY, NOT_THE_KERNEL = 1, 9, 0x60
event = struct.pack("IIQQQQQ", SOFTWARE, 112, DUMMY, 0, 0, 0, NOT_THE_KERNEL)
os.close(call("perf_event_open", buffer(event + bytes(112)), 0, -1, -1, 0))
"""),
    WallTest("P15", "handle page faults in user space (userfaultfd)", """
UFFD_USER_MODE_ONLY = 1
os.close(call("userfaultfd", UFFD_USER_MODE_ONLY))
"""),
    WallTest("P17", "load or unload kernel modules", """
gave_way(allowed("delete_module", b"atoll_no_such_module", 0o4000))
""", "root"),
    WallTest("P17b", "load another kernel, reboot the machine", """
each((("reboot", 0, 0, 0, 0), ("kexec_load", 0, 9999, 1, 0xFFFF)),
     lambda words: words[0] + " " + allowed(*words))
""", "root"),
    WallTest("P17c", "enable swap, enable process accounting", """
each((("swapon", b"/atoll-no-such-file", 0), ("acct", b"/atoll-no-such-file")),
     lambda words: words[0] + " " + allowed(*words))
""", "root"),
    WallTest("P17d", "use I/O ports", """
call("iopl", 3)
""", "root"),
    WallTest("P18", "disable address space randomization", """
call("personality", 0x40000)
"""),
    WallTest("P19", "change the local descriptor table (modify_ldt)", """
call("modify_ldt", 0, buffer(bytes(64)), 64)
"""),
    WallTest("P19b", "create keys in kernel keyrings", """
PROCESS_RING = -2
call("add_key", b"user", b"atoll-verify", b"x", 1, PROCESS_RING)
"""),
    WallTest("P19c", "make 32-bit system calls", """
if platform.machine() != "x86_64":
    not_tried("there are none on " + platform.machine())
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
answer = ctypes.CFUNCTYPE(ctypes.c_int)(address(ctypes.c_char.from_buffer(code)))()
gave_way("getpid") if answer == os.getpid() else held("refused")
"""),
    WallTest("P24", "change the line discipline of a terminal", """
import pty, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, 0x5423, struct.pack("i", 0))
"""),
)  # fmt: skip

_KNOWLEDGE = (
    WallTest("P37", "read kernel addresses (/proc/kallsyms)", """
with open("/proc/kallsyms") as file:
    first = [file.readline() for _ in range(200)]
any(int(line.split()[0], 16) for line in first if line) or held("all of them are zero")
""", "root"),
    WallTest("P37b", "read kernel memory, timers and log", """
each(("/proc/kcore", "/dev/mem", "/dev/kmsg", "/proc/kmsg", "/proc/timer_list",
      "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/slabinfo", "/proc/kpageflags"),
     lambda path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
""", "root"),
    WallTest("P37c", "read /sys", """
os.listdir("/sys/devices")
"""),
    WallTest("P37d", "open hardware devices", """
reach(given["devices"], lambda path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
""", "root"),
    WallTest("R22", "modify cgroups", """
glob.glob("/sys/fs/cgroup/*") or held("there are none")
each((*glob.glob("/sys/fs/cgroup/*/cgroup.procs"), *glob.glob("/sys/fs/cgroup/cgroup.procs"),
      *glob.glob("/sys/fs/cgroup/*/release_agent")), open_to_write)
""", "root"),
    WallTest("R22b", "mount a cgroup filesystem", """
with preparing():
    os.mkdir("groups")
def go(kind):
    call("mount", b"none", b"groups", kind.encode(), 0, b"pids" if kind == "cgroup" else 0)
    call("umount2", b"groups", 2)
each(("cgroup2", "cgroup"), go)
""", "machine"),
)  # fmt: skip

WALL = Wall("kernel interfaces", (*_SWITCHES, *_CALLS, *_KNOWLEDGE))
