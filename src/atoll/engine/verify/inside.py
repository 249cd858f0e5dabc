"""The program that makes attempts inside of a capsule: Python's standard library and nothing else.

It reads `{"given": ..., "attempts": [[id, code], ...]}` from its standard input and prints one
JSON object, id → [verdict, detail]. Every attempt is made by a process of its own, with a time
limit, in a temporary directory that is removed at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from atoll.engine.verify.wall_test import WallTest

LOADER = "import sys; exec(sys.stdin.readline().encode().decode('unicode_escape'))"
"""The command line; the program and its data come through standard input."""

PROGRAM = r'''
import contextlib, errno, fcntl, glob, hashlib, json, os, platform, re, resource, select, shutil
import signal, socket, stat, struct, sys, tempfile, time

# By name: the number on x86_64, and on aarch64.
NUMBERS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "mknodat": (259, 33), "renameat2": (316, 276),
    "fanotify_init": (300, 262), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "unshare": (272, 97), "clone": (56, 220), "clone3": (435, 435), "setns": (308, 268),
    "capset": (126, 91), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "acct": (163, 89),
    "quotactl": (179, 60), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "personality": (135, 92), "adjtimex": (159, 171), "clock_settime": (227, 112),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
    "add_key": (248, 217), "keyctl": (250, 219), "shmget": (29, 194), "shmat": (30, 196),
    "shmdt": (67, 197), "mq_open": (240, 180), "sched_setscheduler": (144, 119),
    "migrate_pages": (256, 238), "lookup_dcookie": (212, 18), "prctl": (157, 167),
}
AT_FDCWD, HERE = -100, b""


class GaveWay(Exception):
    """Got through; says what was reached."""


class Held(Exception):
    """Was stopped, otherwise than by an error of the system."""


class NotTried(Exception):
    """Could not be made; says why."""


def gave_way(what):
    raise GaveWay(what)


def held(why):
    raise Held(why)


def not_tried(why):
    raise NotTried(why)


@contextlib.contextmanager
def preparing():
    try:
        yield
    except OSError as error:
        raise NotTried(str(error)) from error


def call(name, *args):
    """A system call; strings and buffers go by their address."""
    try:
        import ctypes
    except ImportError:
        not_tried("this Python has no ctypes")
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    number = None if column is None else NUMBERS[name][column]
    if number is None:
        not_tried("not a system call of " + platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    done = libc.syscall(ctypes.c_long(number), *given)
    if done == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done


def allowed(name, *args, refusals=(errno.EPERM, errno.EACCES, errno.ENOSYS)):
    """Makes a call with arguments that do no harm: any answer but a refusal means that its
    privilege was there."""
    try:
        call(name, *args)
    except OSError as error:
        if error.errno in refusals:
            raise
        return errno.errorcode[error.errno]
    return "done"


def buffer(content):
    import ctypes
    return ctypes.create_string_buffer(content, max(1, len(content)))


def address(thing):
    import ctypes
    return ctypes.addressof(thing)


def is_secret(content):
    """Whether some bytes hold one of the planted secrets, of which only digests are known here."""
    found = re.findall(rb"atoll-canary-[0-9a-f]{32}", content)
    return any(hashlib.sha256(one).hexdigest() in given["digests"] for one in found)


def read_secret(path):
    """True if a planted secret can be read at a path; never waits for a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return is_secret(os.read(handle, 1 << 20))
    finally:
        os.close(handle)


def search(paths, what):
    """Reads all of the paths; gives way with those that hold a secret, raises the last error."""
    refusal = None
    for path in paths:
        try:
            if read_secret(path):
                gave_way(what + " " + path)
        except (OSError, ValueError) as error:
            refusal = error
    raise refusal if isinstance(refusal, OSError) else Held("no planted secret in it")


def is_same(entry):
    """Whether a path leads to the very file or directory of the host that `entry` describes."""
    status = os.stat(entry["path"])
    return [status.st_dev, status.st_ino] == entry["identity"]


def each(things, act):
    """Gives way with all things that `act` does not raise for, or with what it returns for them;
    raises the last refusal."""
    done, refusal = [], NotTried("there is none on this machine")
    for thing in things:
        try:
            done.append(act(thing) or thing)
        except (OSError, Held) as error:
            refusal = error
    if done:
        gave_way(", ".join(dict.fromkeys(done)))
    raise refusal


def reach(entries, how):
    """Gives way with every entry of the host's that `how` does not raise for."""
    def go(entry):
        is_same(entry) or held("another one is there")
        how(entry["path"])
        return entry["path"]
    each(entries, go)


def write_into(directory):
    """Writes into a directory without leaving a trace: the file has no name."""
    os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600))


def open_to_write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_of(pid):
    with open("/proc/%d/cmdline" % pid, "rb") as file:
        return file.read()


def way_to(family, far, port):
    """The address from which one would go there; an error when that is oneself."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((far, port))
        near = sock.getsockname()[0]
    if near in (far, "127.0.0.1", "::1"):
        raise OSError(errno.ENETUNREACH, "it leads back to oneself")
    return near


def connect(family, place, kind=socket.SOCK_STREAM):
    """Gives way if a process outside answers with a planted secret, or accepts the connection."""
    with socket.socket(family, kind) as sock:
        sock.settimeout(3)
        sock.connect(place)
        said = sock.recv(200)
    if not is_secret(said):
        held("another process answered")


def make(attempt_id, code):
    """One attempt, in this process: [verdict, detail]."""
    try:
        exec(compile(code, attempt_id, "exec"), globals())
    except GaveWay as result:
        return ["gave way", str(result)]
    except Held as result:
        return ["held", str(result)]
    except NotTried as result:
        return ["not tried", str(result)]
    except OSError as error:
        return ["held", errno.errorcode.get(error.errno, str(error))]
    except BaseException as error:
        return ["not tried", "%s: %s" % (type(error).__name__, error)]
    return ["gave way", ""]


def make_apart(attempt_id, code, limit_s=20):
    """The same in a child: whatever it does to itself, the next one starts afresh."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, json.dumps(make(attempt_id, code)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said, deadline = b"", time.monotonic() + limit_s
    while select.select([reader], [], [], max(0, deadline - time.monotonic()))[0]:
        piece = os.read(reader, 65536)
        if not piece:
            break
        said += piece
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(said) if said else ["not tried", "it died, or took longer than a moment"]


given = task["given"]
found = {}
os.umask(0o077)
HERE = tempfile.mkdtemp(prefix="atoll-verify-")
try:
    os.chdir(HERE)
    for attempt_id, code in task["attempts"]:
        found[attempt_id] = make_apart(attempt_id, code)
finally:
    os.chdir("/")
    shutil.rmtree(HERE, ignore_errors=True)
print(json.dumps(found))
'''


def render(attempts: Sequence[WallTest], given: Mapping[str, object]) -> bytes:
    """The program's input: its own source on one line, for the loader, and its task."""
    task = json.dumps({"given": given, "attempts": [(a.id, a.code) for a in attempts]})
    text = f"import json\ntask = json.loads({task!r})\n{PROGRAM}"
    return text.encode("unicode_escape") + b"\n"
