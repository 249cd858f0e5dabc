"""`atoll warm`: prepare the base that new capsules start from."""

from __future__ import annotations

import time

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model import units
from atoll.model.names import printable

_MOST = 20


@click.command("warm")
@click.option("--check", is_flag=True, help="Verify the layers against the project.")
@verb
def command(frame: Frame, *, check: bool) -> int:
    """Copy the current state of the project into layers, so that `new` has nothing to copy."""
    project = frame.project()
    if check:
        return _check(frame)
    started = time.monotonic()
    found = project.describe_layers(project.warm(on_progress=frame.output.freezing))
    frame.output.answer("layers", [shapes.layer(layer) for layer in found], "")
    frame.output.note(
        f"{units.counted(len(found), 'layer')} with "
        f"{units.counted(sum(layer.files for layer in found), 'file')}; "
        f"up to date in {time.monotonic() - started:.2f} s\nhint: atoll show --base"
    )
    return 0


def _check(frame: Frame) -> int:
    project = frame.project()
    found = project.check_layers()
    bad = [one for one in found if one.damaged]
    gaps = None if bad else project.check_base()
    missing, outdated = (gaps.missing, gaps.outdated) if gaps else ([], [])
    lines = [
        f"{one.layer.id} ({one.layer.about}): {path}" for one in bad for path in one.damaged[:_MOST]
    ]
    lines += [f"missing from new capsules: {path}" for path in missing[:_MOST]]
    lines += [f"older in new capsules: {path}" for path in outdated[:_MOST]]
    data = [shapes.checked_layer(one) for one in found]
    if different := [*missing, *outdated]:
        data.append(shapes.checked_base(different))
    frame.output.answer("layers", data, "\n".join(map(printable, lines)))
    if not found:
        frame.output.note("no base exists yet\nhint: atoll warm")
        return 0
    if not lines:
        frame.output.note(f"{len(found)} layers are intact, and a new capsule contains all of them")
        return 0
    users = sorted({name for one in bad for name in one.users})
    if users:
        frame.output.note(f"hint: atoll rm {' '.join(users)}, then: atoll warm")
    elif bad:
        frame.output.note("damaged layers that no capsule uses were removed\nhint: atoll warm")
    else:
        frame.output.note(
            f"in new capsules {units.counted(len(missing), 'file')} would be missing and "
            f"{len(outdated)} older than in the project\nhint: atoll warm"
        )
    return 1
