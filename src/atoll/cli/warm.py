"""`atoll warm`: freezes ahead of time what new capsules start from."""

from __future__ import annotations

import time

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, verb
from atoll.engine import layers
from atoll.model import units


@click.command("warm")
@click.option("--check", is_flag=True, help="Verify that no layer was changed since it was frozen.")
@verb
def command(frame: Frame, *, check: bool) -> int:
    """Freezes the project as it is now, so that `new` has nothing to copy."""
    project = frame.project()
    if check:
        return _check(frame)
    started = time.monotonic()
    base = project.warm(tell=frame.output.freezing)
    found = layers.describe(project.session, project.record, base.layers)
    frame.output.answer("layers", [shapes.layer(layer) for layer in found], "")
    frame.output.note(
        f"{units.counted(len(found), 'layer')} with "
        f"{units.counted(sum(layer.files for layer in found), 'file')}; "
        f"up to date in {time.monotonic() - started:.2f} s\nhint: atoll show --base"
    )
    return 0


def _check(frame: Frame) -> int:
    project = frame.project()
    found = layers.check(project.session, project.record)
    data = [{**shapes.layer(one.layer), **_state(one)} for one in found]
    bad = [one for one in found if one.damaged]
    lines = [
        f"{one.layer.id} ({one.layer.about}): {path}" for one in bad for path in one.damaged[:20]
    ]
    frame.output.answer("layers", data, "\n".join(lines))
    if not bad:
        frame.output.note(f"{len(found)} layers are as they were frozen")
        return 0
    users = sorted({name for one in bad for name in one.users})
    frame.output.note(
        f"hint: atoll rm {' '.join(users)}, then: atoll warm"
        if users
        else "damaged layers that no capsule uses were removed\nhint: atoll warm"
    )
    return 1


def _state(one: layers.Checked) -> dict[str, object]:
    return {"damaged": one.damaged, "users": one.users}
