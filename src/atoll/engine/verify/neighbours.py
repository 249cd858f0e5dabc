"""Attempts on the wall between capsules: a second capsule of the same project runs meanwhile."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

WALL = Wall(
    "other capsules",
    (
        WallTest("F03", "read files of another capsule by path", """
search(given["other"]["files"] + given["other"]["outside"], "read")
"""),
        WallTest("F03b", "read files of another capsule through /proc", """
paths = []
for pid in pids():
    for link in ("root", "cwd"):
        place = "/proc/%d/%s" % (pid, link)
        paths += [place + path for path in given["other"]["files"]]
    paths.append("/proc/%d/cwd/%s" % (pid, given["other"]["name"]))
search(paths, "read")
"""),
        WallTest("F03c", "write into another capsule", """
places = [os.path.dirname(path) for path in given["other"]["outside"]]
if not places:
    not_tried("it has no files of its own")
for place in places:
    write_into(place)
    gave_way(place)
"""),
        WallTest("S09", "read the temporary directory of another capsule", """
search(given["other"]["temporary"], "read")
"""),
        WallTest("N04", "connect to a port of another capsule", """
given["other"]["port"] or not_tried("it could not listen")
connect(socket.AF_INET, ("127.0.0.1", given["other"]["port"]))
"""),
        WallTest("N04b", "connect to a Unix socket of another capsule", """
given["other"]["abstract"] or not_tried("it could not listen")
connect(socket.AF_UNIX, given["other"]["abstract"])
"""),
        WallTest("P28d", "read shared memory of another capsule", """
given["other"]["memory"] or not_tried("it has none")
search([given["other"]["memory"]], "read")
"""),
        WallTest("P28e", "attach a memory segment of another capsule", """
given["other"]["segment"] or not_tried("it has none")
call("shmget", given["other"]["segment"], 0, 0)
"""),
        WallTest("P01d", "see processes of another capsule", """
name = given["other"]["name"].encode()
for pid in pids():
    with contextlib.suppress(OSError):
        if name in command_of(pid):
            gave_way("process %d" % pid)
held("none is visible")
"""),
        WallTest("Z06", "open Atoll's state: its database and sockets", """
reach(given["state"], lambda path: None)
"""),
        WallTest("Z06b", "control the keeper of a capsule", """
if not given["keepers"]:
    not_tried("no capsule has one")
for directory in given["keepers"]:
    try:
        place = os.open(directory, os.O_PATH)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(3)
            sock.connect("/proc/self/fd/%d/keeper" % place)
            sock.sendall(b'{"ping": true}')
            if sock.recv(1000):
                gave_way(directory)
    except OSError as error:
        refusal = error
raise refusal
"""),
        WallTest("Z06c", "connect to a socket of Atoll", """
given["atoll_sockets"] or not_tried("there is none")
for path in given["atoll_sockets"]:
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        try:
            place = os.open(os.path.dirname(path), os.O_PATH)
            with socket.socket(socket.AF_UNIX, kind) as sock:
                sock.settimeout(3)
                sock.connect("/proc/self/fd/%d/%s" % (place, os.path.basename(path)))
            gave_way(path)
        except OSError as error:
            refusal = error
raise refusal
"""),
        WallTest("F11", "modify the shared layers", """
reach(given["layers"], write_into)
"""),
    ),
)  # fmt: skip
