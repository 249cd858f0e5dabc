"""A process that holds planted secrets: in files, sockets, shared memory, a key, its environment.

One runs on the host and one in another capsule; attempts try to reach both. It reads its task from
a line on its standard input, reports on its standard output what it holds, and when its input ends
it removes everything and exits, so that nothing is left even if its starter is killed.
"""

from __future__ import annotations

PROGRAM = r'''
import contextlib, json, os, select, signal, socket, stat, sys

if len(sys.argv) > 2:
    ours = int(sys.argv[2])
    os.dup2(ours, 0)
    os.dup2(ours, 1)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: sys.exit(0))
task = json.loads(sys.stdin.readline())
name, secret = task["name"], task["secret"].encode()
NUMBERS = {
    "x86_64": {"shmget": 29, "shmat": 30, "shmctl": 31, "mq_open": 240, "mq_unlink": 241,
               "add_key": 248, "keyctl": 250},
    "aarch64": {"shmget": 194, "shmat": 196, "shmctl": 195, "mq_open": 180, "mq_unlink": 181,
                "add_key": 217, "keyctl": 219},
}.get(os.uname().machine, {})
cleaning = contextlib.ExitStack()
os.umask(0o077)


def call(what, *args):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    done = libc.syscall(ctypes.c_long(NUMBERS[what]), *given)
    if done == -1:
        raise OSError(ctypes.get_errno(), what)
    return done


def remove(path):
    with contextlib.suppress(OSError):
        os.unlink(path)


def write(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    cleaning.callback(remove, path)
    os.write(handle, secret + b"\n")
    os.close(handle)
    return path


def listen(family, place):
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.bind(place)
    sock.listen(50)
    listeners.append(sock)
    return sock.getsockname()[1] if family != socket.AF_UNIX else place


def share_memory():
    import ctypes
    key = task["number"]
    identity = call("shmget", key, 4096, 0o1600 | 0o2000)
    cleaning.callback(call, "shmctl", identity, 0, 0)
    place = call("shmat", identity, 0, 0)
    ctypes.memmove(place, secret, len(secret))
    return key


def make_queue():
    call("mq_open", name.encode(), 0o102, 0o600, 0)
    cleaning.callback(call, "mq_unlink", name.encode())
    return name


def make_key():
    key = call("add_key", b"user", name.encode(), secret, len(secret), -4)
    cleaning.callback(call, "keyctl", 9, key, -4)
    return name


def open_terminal():
    ours, theirs = os.openpty()
    status = os.fstat(theirs)
    return {"path": os.ttyname(theirs), "identity": [status.st_dev, status.st_ino]}


def attempt(act, *args):
    """None for what this machine, or the wall around this witness, does not allow."""
    try:
        return act(*args)
    except (OSError, KeyError, ImportError, AttributeError):
        return None


listeners = []
with cleaning:
    os.chdir(task["directory"])
    facts = {
        "pid": os.getpid(),
        "name": name,
        "files": [path for path in task["files"] if attempt(write, path)],
        "port": attempt(listen, socket.AF_INET, ("127.0.0.1", 0)),
        "port6": attempt(listen, socket.AF_INET6, ("::1", 0)),
        "abstract": attempt(listen, socket.AF_UNIX, "\0" + name),
        "socket": attempt(listen, socket.AF_UNIX, name + ".socket"),
        "memory": attempt(write, "/dev/shm/" + name),
        "segment": attempt(share_memory),
        "queue": attempt(make_queue),
        "key": attempt(make_key),
        "terminal": attempt(open_terminal),
    }
    if facts["socket"]:
        facts["socket"] = os.path.abspath(facts["socket"])
        cleaning.callback(remove, facts["socket"])
    print(json.dumps(facts), flush=True)
    while True:
        ready = select.select([0, *listeners], [], [])[0]
        if 0 in ready:
            if not os.read(0, 1000):
                break
            continue
        for listener in ready:
            with contextlib.suppress(OSError), listener.accept()[0] as visitor:
                visitor.sendall(secret)
print("gone", flush=True)
'''
