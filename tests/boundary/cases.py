"""Hostile capsules as data: the known findings, and random ones that a seed repeats."""

from __future__ import annotations

import random
from dataclasses import dataclass

from boundary import ingredients

LOOK = ("show", "ls", "diff", "stat", "snapshots", "path", "ps", "logs", "recover", "show-json")
CHANGE = ("snapshot", "fork", "rollback", "commit", "export", "export-all", "warm", "run")
LAST = ("stop", "rm", "rm-force", "recover", "gc", "restore")


@dataclass(frozen=True)
class Case:
    """`inside`, `background` and `checkout` name ingredients; `acts` are the owner's commands.

    `tool` installs the program as `uv tool install` does, below `~/.local/share`; with `venv` the
    project's virtual environment is on the owner's PATH.
    """

    name: str
    inside: tuple[str, ...] = ()
    background: tuple[str, ...] = ()
    checkout: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()
    tool: bool = False
    venv: bool = False
    racer_bytes: int = 8 << 20


KNOWN = (
    Case("E1", inside=("objects-gitlink",), acts=("show", "rm")),
    Case("E2", checkout=("clone-venv",), acts=("probe",)),
    Case("E2-relative", checkout=("clone-venv-relative",), acts=("probe",)),
    Case("E3", inside=("venv-links",), acts=("snapshot", "probe"), venv=True),
    Case("E4", inside=("planted-closed",), acts=("rm-force",), venv=True),
    Case("E5", acts=("probe",), tool=True),
    Case(
        "F1",
        inside=("files-names",),
        background=("racer",),
        acts=("pause", "snapshot", "fork", "stop", "probe"),
        racer_bytes=48 << 20,
    ),
    Case("F2", inside=("config-filter-clean",), acts=("lose-store", "gc")),
    Case("F3", inside=("config-encoding",), acts=("rm-force", "recover", "ls")),
    Case("F4", inside=("config-forged-point",), acts=("rm-force", "recover", "restore", "ls")),
    Case("F5", inside=("flood-errors",), acts=("show",)),
    Case("F6", inside=("lives-init",), acts=("show", "rm-force", "gc")),
)
PLAIN = Case("plain", acts=(*LOOK, *CHANGE, *LAST))
"""Nothing hostile: what the program does anyway is no finding."""
_BREAKING = ("gitdir-", "fifo", "refs-head", "refs-loop", "garbage", "config-format", "sha256")
SEEDS = (2,)
"""Of the short run."""


def find_case(name: str) -> Case:
    for case in (*KNOWN, PLAIN):
        if case.name == name:
            return case
    return random_case(int(name))


def random_case(seed: int) -> Case:
    """The same case for the same seed, as long as the ingredients are the same."""
    rng = random.Random(seed)
    common = sorted(set(ingredients.INSIDE) - ingredients.COSTLY)
    inside = rng.sample(common, rng.randint(2, 7))
    if rng.random() < 0.15:
        inside.append(rng.choice(sorted(ingredients.COSTLY)))
    clones = ["clone-links", "clone-programs", "clone-attributes", "clone-settings"]
    clones.append(rng.choice(("clone-venv", "clone-venv-root", "clone-venv-relative")))
    # What breaks git inside comes last, so that the others have their effect.
    inside.sort(key=lambda name: any(part in name for part in _BREAKING))
    checkout = rng.sample(clones, rng.choice((0, 0, 1, 2)))
    background = rng.sample(("racer", "daemon"), rng.choice((0, 0, 1, 2)))
    acts = rng.sample(LOOK, rng.randint(3, 6)) + rng.sample(CHANGE, rng.randint(2, 5))
    rng.shuffle(acts)
    if background:
        acts.insert(rng.randrange(len(acts)), "pause")
    last = list(LAST)
    if rng.random() < 0.25:
        last[1:2] = ["lose-store", "gc"]
    return Case(
        str(seed), inside=tuple(inside), background=tuple(background), checkout=tuple(checkout),
        acts=(*acts, "probe", *last), tool=rng.random() < 0.1, venv=True,
    )  # fmt: skip
