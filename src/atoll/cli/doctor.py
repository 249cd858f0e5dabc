"""`atoll doctor`: what this host can isolate, measured."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.engine.home import Home
from atoll.model.errors import PrerequisiteError
from atoll.model.state import Finding


@click.command("doctor")
@verb
def command(frame: Frame) -> int:
    """Test each feature that Atoll needs and report the result. Exit with 3 if one is missing."""
    findings = Home.examine()
    frame.output.table(
        "findings",
        [shapes.finding(finding) for finding in findings],
        ("check", "state", "took", "detail"),
        ((f.name, _state(f), f"{f.took_s * 1000:.0f} ms", f.detail) for f in findings),
    )
    for finding in findings:
        if not finding.good and finding.cure:
            frame.output.note(f"hint: {finding.name}: {finding.cure}")
    bad = [finding for finding in findings if finding.needed and not finding.good]
    return PrerequisiteError.exit_code if bad else 0


def _state(finding: Finding) -> str:
    if finding.good:
        return "ok"
    if finding.is_exposure:
        return "not ok"
    return "missing" if finding.needed else "no"
