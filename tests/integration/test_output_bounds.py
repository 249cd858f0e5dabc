"""Output that a capsule controls does not decide how much memory the host needs."""

from __future__ import annotations

import json

from atoll.engine.projects import open_project
from atoll.engine.run.captured_output import LIMIT_BYTES, TEXT_LIMIT_BYTES

MUCH = TEXT_LIMIT_BYTES + (1 << 20)


def test_json_holds_the_end_of_the_output(atoll, repo):
    atoll("new", "x", "--level", "none", cwd=repo)
    script = f"head -c {MUCH} /dev/zero | tr '\\0' a; echo end; echo said >&2"
    done = atoll("run", "x", "--json", "--", "sh", "-c", script, cwd=repo)
    told = json.loads(done.stdout)["data"]
    assert len(told["stdout"]) == TEXT_LIMIT_BYTES
    assert told["stdout"].endswith("aend\n")
    assert told["stdout_dropped_bytes"] == MUCH + len("end\n") - TEXT_LIMIT_BYTES
    assert (told["stderr"], told["stderr_dropped_bytes"]) == ("said\n", 0)
    # As a control: the log on disk has all of it.
    logged = atoll("logs", "x", cwd=repo).stdout
    assert len(logged) == MUCH + len("end\nsaid\n")


def test_the_library_holds_the_end_of_the_output(repo, atoll_home):
    capsule = open_project(repo).new("x", level="none")
    more = LIMIT_BYTES + (1 << 20)
    done = capsule.run(["sh", "-c", f"head -c {more} /dev/zero; echo end"])
    assert len(done.stdout) == LIMIT_BYTES
    assert done.stdout.endswith(b"\0end\n")
    assert done.dropped_bytes == more + len("end\n") - LIMIT_BYTES
