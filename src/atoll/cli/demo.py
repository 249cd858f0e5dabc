"""`atoll demo`: the main job on a sample project, from nothing, in one command."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from atoll.cli.frame import Frame, verb
from atoll.cli.output import Output
from atoll.cli.tables import render_columns
from atoll.engine import shapes
from atoll.engine.home import Home
from atoll.model.names import printable


@click.command("demo")
@click.option("--keep", metavar="DIR", help="Use and keep DIR, which must not exist.")
@verb
def command(frame: Frame, keep: str | None) -> int:
    """Create three capsules of a sample project, run a different fix in each in parallel, test all
    of them, and export the one that passes as a branch."""
    if keep is not None:
        place = Path(keep).absolute()
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            raise click.UsageError(f"`{printable(keep)}` already exists") from None
        return _show(frame.output, place)
    with tempfile.TemporaryDirectory(prefix="atoll-demo-") as temporary:
        return _show(frame.output, Path(temporary))


def _show(output: Output, place: Path) -> int:
    demo = Home.demo(place)
    output.note(f"1. a sample project with a failing test: {demo.root}")
    started = time.monotonic()
    capsules = demo.make_capsules()
    took_s = time.monotonic() - started
    names = ", ".join(capsule.name for capsule in capsules)
    output.note(f"2. {len(capsules)} capsules in {took_s:.2f} s: {names}")
    output.note("3. running a different fix in each capsule, in parallel")
    found = demo.attempt(capsules)
    untouched = demo.is_untouched
    output.note("4. the changes and test results of each")
    rows = [
        (a.capsule.name, a.changed, "pass" if a.passed else "fail", f"{a.took_s:.2f} s")
        for a in found
    ]
    output.note(_indented(render_columns(("capsule", "changed", "tests", "took"), rows)))
    output.note(f"   the owner's checkout is {'untouched' if untouched else 'CHANGED'}")
    brought = []
    for attempt in found:
        if attempt.passed:
            branch, log = demo.export_branch(attempt)
            brought.append(branch)
            name = attempt.capsule.name
            output.note(f"5. `{name}` passed: exported as a branch")
            output.note(_indented(f"$ git log --oneline main..{branch}\n{log}"))
    demo.remove(capsules)
    output.note("6. removed the capsules; the branch stays, and the other work can be recovered")
    data = shapes.demo(found, brought, untouched=untouched)
    output.answer("demo", data, "\n".join(brought))
    return 0 if untouched and brought else 1


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
