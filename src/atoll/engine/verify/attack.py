"""`verify`: lays out canaries, attacks a capsule's walls from inside, clears everything away.

Each wall is attacked by one run, which goes the way of every run of the capsule, but is not in its
list afterwards. Nothing is claimed that was not tried: what could not be made, or did not answer,
is reported as not tried.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atoll.engine.capsules import Capsule
from atoll.engine.projects import CapsuleSpec, Project
from atoll.engine.run import runs
from atoll.engine.state.leases import workspace_plan
from atoll.engine.verify import (
    files,
    inside,
    kernel,
    limits,
    neighbours,
    network,
    processes,
    repository,
    secrets,
    witness,
)
from atoll.engine.verify.canaries import (
    Facts,
    Planted,
    describe_host,
    find_sockets,
    host_witness,
    identities,
    parse_facts,
    plant,
    stray_object,
)
from atoll.engine.verify.wall_test import Verdict, Wall, WallFinding, WallReport
from atoll.model.errors import AtollError
from atoll.model.state import RunState

WALLS = (
    files.WALL,
    neighbours.WALL,
    processes.WALL,
    kernel.WALL,
    network.WALL,
    secrets.WALL,
    repository.WALL,
    limits.WALL,
)
_PYTHONS = ("/usr/bin/python3", "python3")
_ATTACK = ("-I", "-S", "-c", inside.LOADER)
_NOT_FOUND = 127
_LIMIT_S = 120.0
_DETAIL = 500


def verify(
    project: Project,
    capsule: Capsule,
    *,
    on_progress: Callable[[str], None],
    walls: Sequence[Wall] = WALLS,
    homes: Sequence[Path] = (),
) -> WallReport:
    """Attacks the walls of a capsule; `on_progress` gets the name of the next one.

    `homes` are further Atoll homes that must not be reached. Raises what creating a second capsule
    of the level, or starting a run in this one, raises.
    """
    started = time.monotonic()
    findings: list[WallFinding] = []
    _forget_left_runs(capsule)
    with canaries_in_place(project, capsule, on_progress, homes) as given, ExitStack() as own:
        for wall in walls:
            on_progress(f"attacking: {wall.name}")
            findings += attack(wall, given, lambda task: _run_inside(capsule, task, own))
    return WallReport(
        capsule=capsule.name,
        level=capsule.record.level,
        findings=tuple(findings),
        took_s=time.monotonic() - started,
        walls=tuple(wall.name for wall in walls),
    )


@contextmanager
def canaries_in_place(
    project: Project,
    capsule: Capsule,
    on_progress: Callable[[str], None],
    homes: Sequence[Path] = (),
) -> Iterator[dict[str, object]]:
    """What attempts are given: everything that they reach for is there meanwhile."""
    with (
        host_witness() as (planted, host),
        _neighbour(project, capsule, on_progress) as (secret, other),
        stray_object(project.record.git_dir, secret) as stray,
    ):
        yield {
            **describe_host(project.session.owner),
            **describe_project(project, capsule, homes, stray),
            "host": host,
            "other": other,
            "digests": [planted.digest, secret.digest],
        }


def attack(
    wall: Wall, given: Mapping[str, object], run: Callable[[bytes], tuple[bytes, str]]
) -> list[WallFinding]:
    """`run` passes input to a program and returns its output, and the reason if there is none."""
    said, problem = run(inside.render(wall.attempts, given))
    answers = _parse_answers(said)
    missing: tuple[Verdict, str] = ("not tried", problem or "it did not answer")
    return [
        WallFinding(wall.name, attempt.id, attempt.title, *answers.get(attempt.id, missing))
        for attempt in wall.attempts
    ]


def _parse_answers(said: bytes) -> dict[str, tuple[Verdict, str]]:
    """Only what is well-formed: it comes from inside."""
    try:
        found = json.loads(said.splitlines()[-1]) if said else {}
    except ValueError:
        return {}
    answers: dict[str, tuple[Verdict, str]] = {}
    for name, answer in found.items() if isinstance(found, dict) else ():
        match answer:
            case [("held" | "gave way" | "not tried") as verdict, str(detail)]:
                answers[name] = (verdict, detail[:_DETAIL])
    return answers


def _forget_left_runs(capsule: Capsule) -> None:
    """The runs that a killed `verify` has left: they are ours, not the capsule's."""
    for run in capsule.runs():
        if run.state is RunState.ENDED and run.argv[1:] == _ATTACK:
            runs.forget(capsule.session, run)


def _run_inside(capsule: Capsule, task: bytes, own: ExitStack) -> tuple[bytes, str]:
    """The run is forgotten with `own`."""
    for python in _PYTHONS:
        # Not by `capsule.run`: an attack is no reason for an automatic snapshot.
        spec = runs.RunSpec(argv=(python, *_ATTACK), timeout_s=_LIMIT_S)
        run = own.enter_context(
            runs.temporary(capsule.session, capsule.record, capsule.enclosure(), spec)
        )
        done = capsule.follow(run, stdin=task)
        if done.exit_code != _NOT_FOUND:
            complaint = os.fsdecode(done.stderr).strip().splitlines() or ["it printed nothing"]
            return done.stdout, f"the run ended with {done.exit_code}: {complaint[-1]}"
    return b"", "there is no python3 inside"


def describe_project(
    project: Project, capsule: Capsule, homes: Sequence[Path], stray: str | None
) -> Facts:
    """What is the owner's and Atoll's own, by identity."""
    session, git_dir = project.session, project.record.git_dir
    owner = session.owner
    home = owner.get("HOME", "")
    settings = (f"{home}/.gitconfig", f"{home}/.config/git/config", "/etc/gitconfig")
    pool = session.pool(project.record.id)
    within = {
        "config": ("config",),
        "hooks": ("hooks",),
        "refs": ("refs", "refs/heads"),
        "head": ("HEAD",),
        "objects": ("objects",),
        "worktrees": ("worktrees", "logs"),
    }
    entries = {
        name: identities(f"{git_dir}/{path}" for path in paths) for name, paths in within.items()
    }
    return {
        "workspace": capsule.record.workspace,
        "network": capsule.network,
        "uid": os.geteuid(),
        "toolchains": [f"{home}/.local/bin", f"{home}/.cargo/bin", f"{home}/.pyenv/shims"],
        "checkout": identities([str(project.root)]),
        "gitconfig": identities([owner.get("GIT_CONFIG_GLOBAL", ""), *settings]),
        "git": {"path": git_dir, "stray": stray, **entries},
        "state": identities(
            str(path) for home in (session.home, *homes) for path in (home, home / "state.db")
        ),
        "atoll_sockets": [path for home in (session.home, *homes) for path in find_sockets(home)],
        "layers": identities(map(str, [pool, *sorted(pool.glob("layers/*/tree"))[:5]])),
        "keepers": [c.directory for c in session.store.capsules(project.record.id)],
    }


@contextmanager
def _neighbour(
    project: Project, capsule: Capsule, on_progress: Callable[[str], None]
) -> Iterator[tuple[Planted, Facts]]:
    """A second capsule of the same level with a witness in it; gone afterwards."""
    planted = plant()
    on_progress("creating a second capsule")
    name = planted.name.removeprefix("atoll-")
    spec = CapsuleSpec(level=capsule.record.level)
    # The set-up of the project is not what is tried here.
    plan = project.plan(name, spec)._replace(setup=())
    other = project.make([plan])[0]
    try:
        with _living_in(other, planted) as facts:
            yield planted, facts
    finally:
        _remove(project, other)


@contextmanager
def _living_in(other: Capsule, planted: Planted) -> Iterator[Facts]:
    place = other.record.workspace if other.record.branch else "/tmp"  # noqa: S108 - the owner's
    kept, temporary = [f"{place}/{planted.name}"], [f"/tmp/{planted.name}.tmp"]  # noqa: S108
    argv = ("/usr/bin/python3", "-I", "-S", "-c", witness.PROGRAM, planted.name)
    run = runs.start(other.session, other.record, other.enclosure(), runs.RunSpec(argv=argv))
    channel = other.channel(run, role="foreground", rows=24, cols=80)
    if channel is None:
        raise AtollError(f"the witness in `{other.name}` has died")
    with channel:
        channel.write(planted.task(place, [*kept, *temporary]))
        heard = channel.exchange(timeout_s=_LIMIT_S)
        facts = parse_facts(lambda: next(heard, ("", b""))[1])
        plan = workspace_plan(other.session, other.record)
        upper = Path(plan.pool, "layers", plan.upper, "tree", "workspace", planted.name)
        outside = [str(upper)] if plan.is_layered else kept
        try:
            yield {**facts, "outside": outside, "files": kept, "temporary": temporary}
        finally:
            channel.close_input()
            for _ in heard:
                continue
    other.conclude(run)


def _remove(project: Project, other: Capsule) -> None:
    point = other.remove(force=True)
    if point is not None:
        project.drop(point)
