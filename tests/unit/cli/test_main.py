"""Ctrl-C while the program itself is still being imported."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[3] / "src")
PROGRAM = """
import os, signal, sys
sys.path.insert(0, {source!r})
from atoll.__main__ import main

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "atoll.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
        return None

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Impatient())
sys.argv = ["atoll", "--version"]
{call}
"""


def interrupted(call: str, handler: str = "default_int_handler"):
    program = PROGRAM.format(source=SOURCE, call=call, handler=handler)
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip


def test_early_interrupt_ends_quietly():
    done = interrupted("main()")
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


def test_without_main_it_would_be_a_traceback():
    """The control of the test above."""
    assert "KeyboardInterrupt" in interrupted("import atoll.cli.app").stderr


def test_an_ignored_signal_stays_ignored():
    done = interrupted("main()", "SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("atoll ")
