"""Programs that are hard to hold still, and a counter that shows whether they are."""

from __future__ import annotations

import struct

# Each counts in eight bytes of a file that is mapped: progress that anybody can see.
HEAD = """
import ctypes, mmap, os, signal, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
file = open(sys.argv[1], "r+b")
memory = mmap.mmap(file.fileno(), 8)
def count():
    memory[:8] = struct.pack("Q", struct.unpack("Q", memory[:8])[0] + 1)
def forever():
    while True:
        count()
"""

TIMERS = (
    HEAD
    + """
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("pad", ctypes.c_char * 48)]
signal.signal(signal.SIGCONT, lambda *_: None)
for index in range(64):
    timer = ctypes.c_void_p()
    event = Event(signo=signal.SIGCONT, notify=0)
    assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
    times = (ctypes.c_long * 4)(0, 64_000_000, 0, 1_000_000 * (index + 1))
    assert libc.timer_settime(timer, 0, times, None) == 0
forever()
"""
)
THREADS = (
    HEAD
    + """
for _ in range(8):
    threading.Thread(target=forever).start()
while True:
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
"""
)
FORKS = (
    HEAD
    + """
if os.fork():
    while True:
        signal.pause()
while True:
    count()
    if os.fork():
        os._exit(0)
"""
)
LEAVING = (
    HEAD
    + """
# As FORKS, and each leaves the group and the session that it was born in.
if os.fork():
    while True:
        signal.pause()
while True:
    os.setsid()
    count()
    if os.fork():
        os._exit(0)
"""
)
SPAWNS = (
    HEAD
    + """
for _ in range(4):
    os.fork()
while True:
    count()
    subprocess.run(["/bin/true"])
"""
)
VFORKED = (
    HEAD
    + """
# The parent waits in the kernel, where it cannot be interrupted, for a child that never ends.
libc.vfork.restype = ctypes.c_int
vfork = ctypes.PyDLL(None).vfork
if vfork() == 0:
    forever()
"""
)
DEAD_LEADER = (
    HEAD
    + """
threading.Thread(target=forever).start()
libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""
)
STOPPED = (
    HEAD
    + """
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()
forever()
"""
)
DEBUGGED = (
    HEAD
    + """
# The child is traced by its parent, so that no other can trace it.
if os.fork() == 0:
    libc.ptrace(0, 0, None, None)
    forever()
while True:
    signal.pause()
"""
)
ZOMBIES = (
    HEAD
    + """
for _ in range(5):
    if os.fork() == 0:
        os._exit(0)
forever()
"""
)
PROGRAMS = {
    "timers": TIMERS, "threads": THREADS, "forks": FORKS, "leaving": LEAVING, "spawns": SPAWNS,
    "vforked": VFORKED, "dead leader": DEAD_LEADER, "stopped": STOPPED, "zombies": ZOMBIES,
}  # fmt: skip


class Counter:
    def __init__(self, path):
        path.write_bytes(bytes(8))
        self.path = path

    @property
    def value(self):
        return struct.unpack("Q", self.path.read_bytes())[0]
