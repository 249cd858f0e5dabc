"""Attempts on limits: what a process was given it cannot widen."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

WALL = Wall(
    "limits",
    (
        WallTest("P34", "raise its scheduling priority", """
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
""", "root"),
        WallTest("P34b", "use a real-time scheduler", """
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
""", "root"),
        WallTest("P35", "raise a resource limit", """
with preparing():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
except ValueError as error:
    held(str(error))
""", "root"),
        WallTest("P36", "lower its OOM score", """
with open("/proc/self/oom_score_adj") as file:
    now = int(file.read())
with open("/proc/self/oom_score_adj", "w") as file:
    file.write(str(max(-1000, now - 1)))
""", "root"),
    ),
)  # fmt: skip
