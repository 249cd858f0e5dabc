"""Attempts on the wall around processes: those of the host cannot be seen, stopped or read."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

WALL = Wall(
    "processes",
    (
        WallTest("P01", "see processes of the host", """
name = given["host"]["name"].encode()
for pid in pids():
    with contextlib.suppress(OSError):
        if name in command_of(pid):
            gave_way("process %d" % pid)
held("none is visible")
"""),
        WallTest("P01b", "signal a process of the host", """
pid = given["host"]["pid"]
os.kill(pid, 0)
if os.path.exists("/proc/%d" % pid) and given["host"]["name"].encode() not in command_of(pid):
    held("the pid belongs to another process here")
gave_way("process %d" % pid)
"""),
        WallTest("P01c", "open a pidfd of a process of the host", """
pid = given["host"]["pid"]
call("pidfd_open", pid, 0)
if os.path.exists("/proc/%d" % pid) and given["host"]["name"].encode() not in command_of(pid):
    held("the pid belongs to another process here")
gave_way("process %d" % pid)
"""),
        WallTest("P02", "trace a process of the host", """
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
call("ptrace", PTRACE_SEIZE, given["host"]["pid"], 0, 0)
gave_way("process %d" % given["host"]["pid"])
"""),
        WallTest("P02b", "trace a child process", """
child = os.fork()
if child == 0:
    signal.pause()
try:
    call("ptrace", 0x4206, child, 0, 0)
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""),
        WallTest("P03", "copy memory of a process of the host", """
seen = buffer(bytes(64))
place = 0x400000
with contextlib.suppress(OSError), open("/proc/%d/maps" % given["host"]["pid"]) as file:
    place = int(file.read().split("-")[0], 16)
ours, theirs = struct.pack("QQ", address(seen), 64), struct.pack("QQ", place, 64)
answer = allowed("process_vm_readv", given["host"]["pid"], ours, 1, theirs, 1, 0,
                 refusals=(errno.EPERM, errno.ESRCH, errno.ENOSYS))
gave_way(answer)
"""),
        WallTest("P04", "open the memory of a process of the host", """
os.close(os.open("/proc/%d/mem" % given["host"]["pid"], os.O_RDONLY))
gave_way("process %d" % given["host"]["pid"])
"""),
        WallTest("P04b", "copy a file descriptor of a process of the host", """
handle = call("pidfd_open", given["host"]["pid"], 0)
call("pidfd_getfd", handle, 0, 0)
"""),
        WallTest("P05", "write to the memory of the first process of the sandbox", """
os.close(os.open("/proc/1/mem", os.O_RDWR))
gave_way("process 1")
""", "lax"),
        WallTest("P06", "create a user namespace (unshare)", """
call("unshare", 0x10000000)
"""),
        WallTest("P06b", "create a user namespace (clone)", """
child = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""),
        WallTest("P06c", "create a user namespace (clone3)", """
arguments = buffer(struct.pack("=11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0))
child = call("clone3", arguments, 88)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""),
        WallTest("P06d", "create other namespaces", """
flags = {"mounts": 0x20000, "network": 0x40000000, "names": 0x4000000, "time": 0x80,
         "cgroup": 0x2000000, "ipc": 0x8000000}
each(flags, lambda name: call("unshare", flags[name]))
""", "lax"),
        WallTest("P06e", "enter the namespaces of another process", """
paths = ["/proc/%d/ns/%s" % (pid, name) for pid in (1, os.getppid(), given["host"]["pid"])
         for name in ("uts", "net", "ipc", "mnt")]
each(paths, lambda path: call("setns", os.open(path, os.O_RDONLY), 0))
""", "lax"),
        WallTest("P07", "have capabilities", """
with open("/proc/self/status") as file:
    text = file.read()
sets = dict(re.findall(r"Cap(\\w+):\\s*([0-9a-f]+)", text))
full = [name for name, value in sets.items() if int(value, 16)]
if not full:
    held("all sets are empty")
gave_way(", ".join("%s=%s" % (name, sets[name]) for name in full))
"""),
        WallTest("P07b", "raise capabilities", """
header = buffer(struct.pack("Ii", 0x20080522, 0))
call("capset", header, buffer(struct.pack("6I", *[0xFFFFFFFF, 0xFFFFFFFF, 0, 0x1FF, 0x1FF, 0])))
""", "lax"),
        WallTest("P07c", "become another user", """
for uid in (0, 1, 65534, 2000):
    try:
        os.setresuid(uid, uid, uid)
        if uid != given["uid"]:
            gave_way("uid %d" % uid)
    except OSError as error:
        refusal = error
raise refusal
""", "root"),
        WallTest("P07d", "gain privileges by executing a program", """
PR_GET_NO_NEW_PRIVS = 39
call("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 or held("no_new_privs is set")
gave_way("no_new_privs is not set")
"""),
        WallTest("P23", "inject input into a terminal (TIOCSTI)", """
import pty, termios, tty
pid, master = pty.fork()
if pid == 0:
    code = 255
    try:
        tty.setraw(0)
        fcntl.ioctl(0, termios.TIOCSTI, b"x")
        code = 0
    except OSError as error:
        code = error.errno
    finally:
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if code == 255:
    not_tried("no terminal could be made")
if code:
    raise OSError(code, "TIOCSTI")
"""),
        WallTest("P25", "open a terminal of the host", """
given["host"]["terminal"] or not_tried("the host has none")
reach([given["host"]["terminal"]], lambda path: os.close(os.open(path, os.O_RDWR | os.O_NOCTTY)))
"""),
        WallTest("P28", "read shared memory of the host", """
given["host"]["memory"] or not_tried("the host has none")
search([given["host"]["memory"]], "read")
"""),
        WallTest("P28b", "attach a memory segment of the host", """
given["host"]["segment"] or not_tried("the host has none")
call("shmget", given["host"]["segment"], 0, 0)
"""),
        WallTest("P28c", "open a message queue of the host", """
given["host"]["queue"] or not_tried("the host has none")
call("mq_open", given["host"]["queue"].encode(), 0, 0, 0)
"""),
    ),
)  # fmt: skip
