"""`atoll shell`: an interactive shell inside a capsule."""

from __future__ import annotations

import os
import shutil

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import run_foreground
from atoll.engine.runs import RunSpec


@click.command("shell")
@name_argument
@verb
def command(frame: Frame, name: str) -> int:
    """Opens your shell inside the capsule NAME, and exits with its code."""
    return run_foreground(frame, frame.capsule(name), RunSpec(argv=(find_shell(),)))


def find_shell() -> str:
    for candidate in (os.environ.get("SHELL"), "bash", "sh"):
        found = shutil.which(candidate) if candidate else None
        if found is not None:
            return found
    return "/bin/sh"
