"""Attempts on secrets outside of files: variables, keys, sockets."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

WALL = Wall(
    "secrets",
    (
        WallTest("S01", "find a token in the environment", """
with open("/proc/self/environ", "rb") as file:
    started_with = file.read()
if is_secret(started_with) or any(map(is_secret, map(os.fsencode, os.environ.values()))):
    gave_way("the planted one")
held("the planted one is not visible")
"""),
        WallTest("S01b", "find the owner's credential variables", """
found = [name for name in given["variables"] if name in os.environ]
gave_way(", ".join(found)) if found else held("none of %d" % len(given["variables"]))
"""),
        WallTest("S01c", "read the environment of other processes", """
search(["/proc/%d/environ" % pid for pid in pids()], "read")
"""),
        WallTest("S01d", "find a secret in the command lines of other processes", """
shown = [pid for pid in pids() if pid != os.getpid()]
for pid in shown:
    with contextlib.suppress(OSError):
        if b"atoll.keeper" in command_of(pid) or b"atoll.engine" in command_of(pid):
            gave_way("process %d is Atoll's" % pid)
held("none of Atoll's is visible")
"""),
        WallTest("S02", "use inherited file descriptors", """
found = []
for name in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        target = os.readlink("/proc/self/fd/" + name)
        if int(name) > 2 and not target.startswith(("pipe:", "/proc/")):
            found.append(target)
gave_way(", ".join(found)) if found else held("there are none")
"""),
        WallTest("S02b", "use file descriptors of parent processes", """
found, refusal, pid = [], Held("there are none"), os.getppid()
while pid > 0:
    try:
        with open("/proc/%d/stat" % pid) as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        for name in os.listdir("/proc/%d/fd" % pid):
            target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            if int(name) > 2 and target.startswith(("/", "socket:")):
                found += [target] if not target.startswith(("/proc/", "/dev/")) else []
    except OSError as error:
        refusal, parent = error, 0
    pid = parent
if found:
    gave_way(", ".join(found[:5]))
raise refusal
"""),
        WallTest("S03", "read a key from the owner's keyring", """
KEYCTL_SEARCH, USER_RING = 10, -4
given["host"]["key"] or not_tried("the host has none")
call("keyctl", KEYCTL_SEARCH, USER_RING, b"user", given["host"]["key"].encode(), 0)
"""),
        WallTest("S03b", "see the names of the owner's keys", """
with open("/proc/keys") as file:
    text = file.read()
(given["host"]["key"] or not_tried("the host has none")) in text or held("none is visible")
"""),
        WallTest("S04", "read the owner's git configuration", """
reach(given["gitconfig"], lambda path: os.close(os.open(path, os.O_RDONLY)))
"""),
        WallTest("S09b", "read temporary files of the host", """
if given["host"]["place"].startswith("/tmp/"):
    os.listdir(given["host"]["place"])
    gave_way(given["host"]["place"])
not_tried("the host's temporary directory is another")
"""),
    ),
)  # fmt: skip
