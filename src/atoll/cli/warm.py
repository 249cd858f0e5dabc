"""`atoll warm`: freezes ahead of time what new capsules start from."""

from __future__ import annotations

import time

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, verb
from atoll.engine import layers
from atoll.model import units
from atoll.model.names import printable

_MOST = 20


@click.command("warm")
@click.option("--check", is_flag=True, help="Verify that new capsules contain what was frozen.")
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
    bad = [one for one in found if one.damaged]
    gaps = layers.Gaps([], []) if bad else project.check_base()
    lines = [
        f"{one.layer.id} ({one.layer.about}): {path}" for one in bad for path in one.damaged[:_MOST]
    ]
    lines += [f"missing from new capsules: {path}" for path in gaps.missing[:_MOST]]
    lines += [f"older in new capsules: {path}" for path in gaps.outdated[:_MOST]]
    data = [{**shapes.layer(one.layer), **_state(one)} for one in found]
    if different := [*gaps.missing, *gaps.outdated]:
        base = layers.Layer(id="base", kind="base", about="all layers together")
        data.append({**shapes.layer(base), "damaged": different, "users": []})
    frame.output.answer("layers", data, "\n".join(map(printable, lines)))
    if not found:
        frame.output.note("nothing is frozen yet\nhint: atoll warm")
        return 0
    if not lines:
        frame.output.note(
            f"{len(found)} layers are as they were frozen, and a new capsule contains all of them"
        )
        return 0
    users = sorted({name for one in bad for name in one.users})
    if users:
        frame.output.note(f"hint: atoll rm {' '.join(users)}, then: atoll warm")
    elif bad:
        frame.output.note("damaged layers that no capsule uses were removed\nhint: atoll warm")
    else:
        frame.output.note(
            f"in new capsules {units.counted(len(gaps.missing), 'file')} would be missing and "
            f"{len(gaps.outdated)} older than in the project\nhint: atoll warm"
        )
    return 1


def _state(one: layers.Checked) -> dict[str, object]:
    return {"damaged": one.damaged, "users": one.users}
