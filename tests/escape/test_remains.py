"""A question inherits nothing, and nothing of a run outlives its end."""

from __future__ import annotations

import os
import sys

import pytest

from atoll.engine.enclosure import enclosures
from atoll.engine.run.runs import RunSpec
from atoll.host import process, procfs


def test_a_question_inherits_three_descriptors(capsule):
    inside = enclosures.enclosure(capsule.session, capsule.record)
    own = os.open("/dev/null", os.O_RDONLY)
    lister = ("python3", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
    try:
        done = process.run(lister, within=inside, keep_fds=(own,))
        assert done.text == "[0, 1, 2, 3]\n"
        # The control: a program without walls gets what it is given.
        done = process.run((sys.executable, *lister[1:]), keep_fds=(own,))
        assert str(own) in done.text
    finally:
        os.close(own)


DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
        os.closerange(0, 100)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""


@pytest.mark.parametrize("how", ["stop", "pause and stop", "rm"])
def test_a_daemon_without_environment_does_not_outlive_its_end(capsule, how):
    seconds = str(200_000 + os.getpid())

    def living():
        return [p for p in procfs.processes().values() if p.command == f"sleep {seconds}"]

    run = capsule.start(RunSpec(argv=("python3", "-c", DAEMON, seconds), background=True))
    assert next(capsule.log(run, follow=True)).data == b"up\n"
    assert living()
    if how == "pause and stop":
        assert capsule.pause() >= 2
    if how == "rm":
        capsule.remove(force=True)
    else:
        capsule.stop()
    assert not living()
