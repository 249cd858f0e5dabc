"""`atoll show`: one capsule, the settings with their sources, or the base."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import render_size
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.model import units
from atoll.model.enclosure import LIMITS_BY_FIELD, SETTABLE_LIMITS, TIME_LIMIT
from atoll.model.limits import render_limit
from atoll.model.names import printable
from atoll.model.settings import Setting
from atoll.model.state import RunState

_MOST_ENDED = 10
"""Active runs are shown in addition."""


@click.command("show")
@name_argument
@click.option("--config", is_flag=True, help="Show each setting and its source.")
@click.option("--base", is_flag=True, help="Show the base layers and the files left out.")
@verb
def command(frame: Frame, name: str | None, *, config: bool, base: bool) -> None:
    """Show the capsule NAME: workspace, ports, limits, unexported work and runs."""
    if (config or base) and name is not None:
        raise click.UsageError("`--config` and `--base` show the project: they take no NAME")
    if config or base:
        (_show_config if config else _show_base)(frame)
        return
    if name is None:
        raise click.UsageError("give the name of a capsule, `--config` or `--base`")
    capsule = frame.capsule(name)
    work, runs = capsule.work(), capsule.runs()
    used = capsule.disk()
    shared = frame.project().base_disk()
    data = shapes.capsule_details(capsule, work, runs=runs, used=used, shared=shared)
    on = f", on a base of {phrases.disk(shared)} that all capsules share" if shared.bytes else ""
    shown = phrases.disk(used) + on
    lines = [f"{key:<10} {value}" for key, value in (*_facts(capsule), ("disk", shown))]
    lines += [
        f"{part:<10} {', '.join(f'{key} {value}' for key, value in facts.items())}"
        for part, facts in data["parts"].items()
    ]
    lines += [f"{'work':<10} {line}" for line in work.render() or ["nothing that exists only here"]]
    lines += [
        f"{'run ' + str(run.number):<10} {phrases.state_of(run)}  {phrases.command(run.argv)}"
        for index, run in enumerate(runs)
        if index >= len(runs) - _MOST_ENDED or run.state is not RunState.ENDED
    ]
    frame.output.answer("capsule", data, "\n".join(map(printable, lines)))


command.params[0].required = False


def _facts(capsule: Capsule) -> list[tuple[str, str]]:
    record = capsule.record
    ports = ", ".join(f"{name} {port}" for name, port in record.ports.items())
    seen = capsule.visible()
    return [
        ("name", record.name),
        ("level", record.level),
        ("state", f"{record.state}, paused" if capsule.is_paused else str(record.state)),
        ("base", f"{record.base_ref} at {record.base_commit}"),
        ("branch", record.branch or "none: the checkout itself"),
        ("workspace", f"{record.workspace} (driver `{capsule.workspace_driver}`)"),
        ("ports", ports),
        ("network", capsule.network),
        ("visible", "all files that you can read" if seen is None else _visible(seen)),
        ("limits", _limits(capsule)),
        ("created", phrases.moment(record.created_at)),
    ]


def _visible(places: list[str]) -> str:
    rest = [place for place in places if not place.startswith("/etc/")]
    return " ".join(["/etc (parts)", *rest])


def _limits(capsule: Capsule) -> str:
    limit = capsule.record.time_limit_s
    shown = [f"time {render_limit(TIME_LIMIT, limit)} per run"] if limit else []
    for key, (value, held) in capsule.limits().items():
        kind = LIMITS_BY_FIELD[key]
        amount = render_size(value) if kind.unit == "size" else render_limit(kind, value)
        left = ", ".join(capsule.uncounted(key, held))
        how = f"{held}, not counting {left}" if left else held
        shown.append(f"{kind.name} {amount} ({how})")
    return ", ".join(shown) or "none"


def _show_base(frame: Frame) -> None:
    project = frame.project()
    base = project.base()
    if base is None:
        frame.output.answer("base", None, "")
        frame.output.note("no base exists yet\nhint: atoll warm")
        return
    lines = [
        f"{layer.kind:<13} {layer.about}: {units.counted(layer.files, 'file')}, "
        f"{render_size(layer.bytes)}"
        for layer in base.layers
    ]
    lines += [f"{'left out':<13} {entry.path}: {entry.reason}" for entry in base.left_out]
    lines += [f"{'included':<13} {entry.path}: {entry.reason}" for entry in base.tracked_secrets]
    frame.output.answer(
        "base", shapes.base(base, project.base_disk()), "\n".join(map(printable, lines))
    )


def _show_config(frame: Frame) -> None:
    project = frame.project()
    config = project.config()
    settings = list(config.settings.values.values())
    frame.output.table(
        "config",
        [shapes.setting(setting) for setting in settings],
        ("key", "value", "source"),
        ((s.key, _value(s), s.source) for s in settings),
    )
    if config.file is not None and not project.is_trusted(config):
        frame.output.note("atoll.toml is not approved\nhint: atoll trust")


def _value(setting: Setting) -> str:
    value = setting.value
    if value is None:
        return "none"
    section, _, name = setting.key.rpartition(".")
    if section == "capsule.limits":
        return render_limit(SETTABLE_LIMITS[name], value)
    return ", ".join(value) if isinstance(value, (list, tuple)) else str(value)
