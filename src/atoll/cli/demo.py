"""`atoll demo`: the main job on a sample project, from nothing, in one command."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from atoll.cli.frame import Frame, verb
from atoll.cli.output import Output
from atoll.cli.tables import render_columns
from atoll.engine import demo, work
from atoll.engine.capsules import Capsule
from atoll.engine.projects import Project, open_project

TEST = ("python3", "-m", "unittest", "discover", "-q", "-s", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one stand-in for an agent did, as it was observed."""

    capsule: Capsule
    changed: str
    passed: bool
    took_s: float


@click.command("demo")
@click.option("--keep", metavar="DIR", help="Do it in DIR, which must not exist, and leave it.")
@verb
def command(frame: Frame, keep: str | None) -> int:
    """Makes three capsules of a sample project, runs a different attempt at its task in each at
    the same time, checks them all and brings the good one back as a branch."""
    if keep is not None:
        place = Path(keep).absolute()
        place.mkdir(parents=True)
        return _show(frame.output, place)
    with tempfile.TemporaryDirectory(prefix="atoll-demo-") as temporary:
        return _show(frame.output, Path(temporary))


def _show(output: Output, place: Path) -> int:
    root = demo.make_sample(place)
    project = open_project(root, home=place / "home", background=False)
    before = demo.owner_state(root)
    output.note(f"1. a sample project with a failing test: {root}")
    capsules = _make_capsules(project, output)
    output.note("3. a different attempt in each capsule, all at the same time")
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(_attempt, capsules))
    untouched = demo.owner_state(root) == before
    good = [attempt for attempt in found if attempt.passed]
    output.note("4. what each did, and what the tests say of it")
    rows = [
        (a.capsule.name, a.changed, "pass" if a.passed else "fail", f"{a.took_s:.2f} s")
        for a in found
    ]
    output.note(_indented(render_columns(("capsule", "changed", "tests", "took"), rows)))
    output.note(f"   the owner's checkout is {'untouched' if untouched else 'CHANGED'}")
    brought = [_bring_back(output, root, attempt) for attempt in good]
    _remove(output, capsules)
    data = {
        "attempts": [
            {"name": a.capsule.name, "passed": a.passed, "changed": a.changed} for a in found
        ],
        "checkout_untouched": untouched,
        "branches": brought,
    }
    output.answer("demo", data, "\n".join(brought))
    return 0 if untouched and brought else 1


def _make_capsules(project: Project, output: Output) -> list[Capsule]:
    started = time.monotonic()
    capsules = [project.new(name) for name in demo.attempts()]
    took = time.monotonic() - started
    names = ", ".join(c.name for c in capsules)
    output.note(f"2. {len(capsules)} capsules in {took:.2f} s: {names}")
    return capsules


def _attempt(capsule: Capsule) -> Attempt:
    started = time.monotonic()
    # By its input: behind walls nothing of Atoll's can be seen.
    capsule.run(["python3", "-"], stdin=demo.attempts()[capsule.name].read_bytes())
    tests = capsule.run(TEST)
    summary = work.diff(capsule, stat=True).text.decode().strip().splitlines()
    return Attempt(
        capsule=capsule,
        changed=summary[-1].strip() if summary else "nothing",
        passed=tests.outcome.good,
        took_s=time.monotonic() - started,
    )


def _bring_back(output: Output, root: Path, attempt: Attempt) -> str:
    capsule = attempt.capsule
    work.commit(capsule, f"shop: the {capsule.name} fix")
    branch = str(capsule.record.branch)
    output.note(f"5. `{capsule.name}` passed: it is a branch in the owner's repository")
    output.note(_indented(f"$ git log --oneline main..{branch}\n{demo.branch_log(root, branch)}"))
    return branch


def _remove(output: Output, capsules: list[Capsule]) -> None:
    for capsule in capsules:
        keep_branch = not capsule.work().uncommitted
        capsule.remove(force=not keep_branch, keep_branch=keep_branch)
    output.note("6. the capsules are gone; the branch stays, the others' work can be recovered")


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
