"""Attempts on the wall around files: the host's are not there, or cannot be changed."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

_READ = (
    WallTest("F01", "read keys and tokens in a home directory of the host", """
search(given["host"]["files"], "read")
"""),
    WallTest("F01b", "open the owner's keys, settings and history", """
reach(given["known"], os.stat)
"""),
    WallTest("F02", "read the host's users, names and secrets in /etc", """
def look(path):
    os.listdir(path) if os.path.isdir(path) else os.close(os.open(path, os.O_RDONLY))
reach(given["etc"], look)
"""),
    WallTest("F02b", "list homes, logs, state and devices of the host", """
reach(given["places"], os.listdir)
"""),
    WallTest("F02c", "list the directory of a path's parent, up to the host's root", """
with preparing():
    place = os.open(HERE, os.O_RDONLY)
for _ in range(60):
    place = os.open("..", os.O_RDONLY, dir_fd=place)
search(["/proc/self/fd/%d%s" % (place, path) for path in given["host"]["files"]], "read")
"""),
    WallTest("F05", "read a file of the host through a symbolic link", """
links = []
for number, path in enumerate(given["host"]["files"]):
    with preparing():
        os.symlink(path, "link-%d" % number)
    links.append(HERE + "/link-%d" % number)
search(links, "read by")
"""),
    WallTest("F17", "open files by inode number", """
FILEID_INO32_GEN, ROOT_INODE = 1, 2
handle = buffer(struct.pack("IiII", 8, FILEID_INO32_GEN, ROOT_INODE, 0))
place = os.open("/usr", os.O_RDONLY)
answer = allowed("open_by_handle_at", place, handle, os.O_RDONLY)
gave_way("the filesystem of /usr: " + answer)
""", "root"),
    WallTest("F20", "read files through /proc/PID/root and /proc/PID/cwd", """
paths = []
for pid in pids():
    for link in ("root", "cwd", "task/%d/root" % pid):
        paths += ["/proc/%d/%s%s" % (pid, link, path) for path in given["host"]["files"]]
    paths.append("/proc/%d/cwd/%s" % (pid, given["host"]["name"]))
search(paths, "read")
"""),
    WallTest("F20b", "read files through /proc/PID/fd", """
paths = []
for pid in pids():
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/%d/fd" % pid):
            place = "/proc/%d/fd/%s" % (pid, fd)
            if os.path.isdir(place):
                paths += [place + "/.." * 30 + path for path in given["host"]["files"]]
with preparing():
    paths += ["/proc/self/fd/%d%s%s" % (os.open("/", os.O_RDONLY), "/.." * 3, path)
              for path in given["host"]["files"]]
search(paths, "read")
"""),
    WallTest("F27", "watch a directory of the host", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
with preparing():
    watcher = libc.inotify_init()
if libc.inotify_add_watch(watcher, given["host"]["place"].encode(), 0x100) < 0:
    raise OSError(ctypes.get_errno(), "inotify")
gave_way(given["host"]["place"])
"""),
    WallTest("F27b", "watch and block access to a whole filesystem (fanotify)", """
call("fanotify_init", 4, 0)
""", "root"),
)  # fmt: skip

_WRITE = (
    WallTest("F04", "write to system directories", """
each(("/", "/usr", "/usr/bin", "/usr/local/bin", "/usr/lib", "/etc", "/etc/profile.d", "/opt",
      "/var", "/dev"), write_into)
""", "lax"),
    WallTest("F04b", "modify system programs", """
each(("/usr/bin/env", "/bin/sh", "/usr/bin/python3", "/etc/ld.so.cache", "/usr/bin/git"),
     open_to_write)
""", "root"),
    WallTest("F04c", "modify the owner's toolchains", """
tools = [place for place in os.environ.get("PATH", "").split(":") if os.path.isdir(place)]
each([*tools, *given["toolchains"]], write_into)
""", "root"),
    WallTest("F06", "write to a file of the host through a symbolic link", """
with preparing():
    os.symlink(given["host"]["files"][0], "out")
open_to_write("out")
gave_way(given["host"]["files"][0])
"""),
    WallTest("F06b", "write into the owner's checkout", """
reach(given["checkout"], write_into)
"""),
    WallTest("F06c", "write into a directory of the host", """
write_into(given["host"]["place"])
gave_way(given["host"]["place"])
"""),
    WallTest("F13", "hard-link a file of the host", """
os.link(given["host"]["files"][0], "taken")
gave_way(given["host"]["files"][0])
"""),
    WallTest("F13b", "hard-link a visible file to modify it under another name", """
for path in ("/usr/bin/env", "/etc/services", "/etc/ld.so.cache"):
    for place in (HERE, given["workspace"], os.environ.get("HOME", HERE)):
        target = "%s/.atoll-verify-%d" % (place, os.getpid())
        try:
            os.link(path, target)
            os.unlink(target)
            gave_way(path + " in " + place)
        except OSError as error:
            refusal = error
raise refusal
""", "root"),
    WallTest("F15", "mount a filesystem", """
call("mount", b"none", HERE.encode(), b"tmpfs", 0, b"size=4k")
call("umount2", HERE.encode(), 2)
""", "lax"),
    WallTest("F15b", "bind-mount a directory and make it writable", """
MS_BIND, MS_REMOUNT = 0x1000, 0x20
call("mount", b"/usr", HERE.encode(), 0, MS_BIND, 0)
call("mount", b"none", HERE.encode(), 0, MS_BIND | MS_REMOUNT, 0)
call("umount2", HERE.encode(), 2)
""", "lax"),
    WallTest("F15c", "unmount a mount that hides files", """
MNT_EXPIRE = 4  # only marks it, and that once
each((b"/proc", b"/dev", b"/tmp", b"/dev/shm"),
     lambda place: allowed("umount2", place, MNT_EXPIRE))
""", "lax"),
    WallTest("F15d", "mount with fsopen and fsmount", """
made = call("fsopen", b"tmpfs", 0)
os.close(made)
""", "lax"),
    WallTest("F15e", "clone a mount and change its flags", """
OPEN_TREE_CLONE = 1
tree = call("open_tree", AT_FDCWD, b"/usr", OPEN_TREE_CLONE)
call("mount_setattr", tree, b"", 0x1000, buffer(struct.pack("=QQQQ", 0, 0, 0, 0)), 32)
""", "lax"),
    WallTest("F16", "change the root directory", """
call("chroot", HERE.encode())
""", "lax"),
    WallTest("F16b", "replace the root mount (pivot_root)", """
gave_way(allowed("pivot_root", HERE.encode(), HERE.encode()))
""", "lax"),
    WallTest("F18", "create device nodes", """
for kind, number in ((stat.S_IFCHR, os.makedev(1, 3)), (stat.S_IFBLK, os.makedev(8, 0))):
    os.mknod("node", kind | 0o600, number)
    os.unlink("node")
""", "root"),
    WallTest("F18b", "find unexpected device nodes", """
harmless = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
found = []
for place, names, nodes in os.walk("/dev"):
    for name in nodes:
        status = os.lstat(os.path.join(place, name))
        number = (os.major(status.st_rdev), os.minor(status.st_rdev))
        if stat.S_ISBLK(status.st_mode):
            found.append(name)
        elif stat.S_ISCHR(status.st_mode) and number not in harmless and number[0] not in (5, 136):
            found.append(name)
if not found:
    held("there is none")
gave_way(", ".join(found[:6]) + (" …" if len(found) > 6 else ""))
"""),
    WallTest("F19", "gain privileges with a setuid program", """
program = shutil.which("su", path="/usr/bin:/bin") or not_tried("there is no su")
if os.geteuid() == 0:
    not_tried("root has nothing to gain")
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.dup2(reader, 0)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.execv(program, ["su", "-c", "true", "root"])
gained, deadline = False, time.monotonic() + 2
while not gained and time.monotonic() < deadline:
    with contextlib.suppress(OSError), open("/proc/%d/status" % child) as file:
        uids = re.search("Uid:(.*)", file.read())[1].split()
        gained = uids[1] != str(os.geteuid())
    if os.waitpid(child, os.WNOHANG)[0]:
        break
else:
    os.kill(child, signal.SIGKILL)
gained or held("it stays who it is")
gave_way("su is " + uids[1])
""", "user"),
    WallTest("F19b", "find a directory where setuid programs work", """
found = []
for place in (HERE, given["workspace"], os.environ.get("HOME", HERE), "/tmp", "/usr/bin"):
    if os.path.isdir(place) and not os.statvfs(place).f_flag & os.ST_NOSUID:
        found.append(place)
gave_way(", ".join(found)) if found else held("none")
"""),
    WallTest("F23", "set overlayfs attributes that hide files", """
os.setxattr(HERE, "trusted.overlay.opaque", b"y")
""", "root"),
    WallTest("F23b", "create an overlayfs whiteout", """
WHITEOUT = 4
with preparing():
    open("a", "w").close()
call("renameat2", AT_FDCWD, b"a", AT_FDCWD, b"b", WHITEOUT)
""", "lax"),
    WallTest("F30", "write a core dump", """
with open("/proc/sys/kernel/core_pattern") as file:
    if file.read(1) == "|":
        not_tried("crashes are given to a program of this machine")
limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
child = os.fork()
if child == 0:
    os.abort()
os.WCOREDUMP(os.waitpid(child, 0)[1]) or held("no core was written")
"""),
)  # fmt: skip

WALL = Wall("files", (*_READ, *_WRITE))
