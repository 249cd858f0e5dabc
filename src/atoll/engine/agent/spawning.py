"""What `spawn` was asked for, and the decisions before anything is made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from atoll.engine.agent import agents, selection
from atoll.engine.agent.prompts import find_name, require_prompt, require_typable
from atoll.engine.agent.selection import ChosenAgent
from atoll.engine.network import rules
from atoll.engine.state.session import Session
from atoll.model.adapter import has_option
from atoll.model.agent import AgentSpec, AgentTask
from atoll.model.errors import IsolationError, SpecError
from atoll.model.names import NAME_LENGTH, numbered, parse_name
from atoll.model.plan import CapsulePlan
from atoll.model.presets import MODEL_APIS
from atoll.model.state import ProjectRecord

MOST = 100


class SpawnPlan(NamedTuple):
    """What will be done."""

    chosen: ChosenAgent
    task: AgentTask
    names: tuple[str, ...]


def plan(
    session: Session, project: ProjectRecord, spec: AgentSpec, taken: Collection[str]
) -> SpawnPlan:
    """Checks the request; makes nothing. Raises SpecError for a request that makes no sense, and
    what `selection.choose` raises.
    """
    _require_consistent(spec)
    prompt = ""
    if spec.prompt or not spec.is_interactive:
        prompt = require_prompt(spec.prompt)
    for check in spec.checks:
        if not check.strip() or "\0" in check:
            raise SpecError("`--check` needs a shell command", hint="--check 'make test'")
    for name, value in (("--model", spec.model), ("--effort", spec.effort)):
        require_typable(value)
        if value.startswith("-"):
            raise SpecError(f"`{name}` cannot begin with `-`")
    budget = agents.parse_budgets(spec.budget)
    chosen = selection.choose(session, project, spec.agent, spec.command)
    require_ways(chosen, spec)
    task = AgentTask(
        prompt=prompt,
        model=spec.model,
        effort=spec.effort,
        interactive=spec.is_interactive,
        checks=spec.checks,
        budget=budget,
        command=chosen.command,
        commits=spec.commits,
        timeout_s=spec.timeout_s,
    )
    names = () if spec.inside is not None else find_names(spec, prompt, chosen.name, taken)
    return SpawnPlan(chosen, task, names)


def _require_consistent(spec: AgentSpec) -> None:
    if spec.inside is not None and (spec.name is not None or spec.number != 1):
        raise SpecError(
            "`--in` uses one existing capsule: `--name` and `-n` make new ones",
            hint="omit one of them",
        )
    if spec.is_interactive and spec.number != 1:
        raise SpecError("`-i` shows one agent: `-n` starts several", hint="omit one of them")
    if not 1 <= spec.number <= MOST:
        raise SpecError(f"`-n` must be from 1 to {MOST}")


def require_ways(chosen: ChosenAgent, spec: AgentSpec) -> None:
    """Raises SpecError for what the agent's command line that will be used cannot do."""
    lines = chosen.spec.commands
    if spec.is_interactive and not lines.interactive:
        raise SpecError(
            f"`{chosen.name}` has no screen of its own", hint=f'atoll spawn {chosen.name} "PROMPT"'
        )
    takes_prompt = chosen.command or any("{prompt}" in word for word in lines.interactive)
    if spec.is_interactive and spec.prompt and not takes_prompt:
        raise SpecError(
            f"`{chosen.name}` takes no first prompt on its own screen",
            hint=f"atoll spawn {chosen.name} -i, and type it there",
        )
    if not spec.is_interactive and not lines.headless:
        raise SpecError(
            f"`{chosen.name}` works on its own screen only", hint=f"atoll spawn {chosen.name} -i"
        )
    _require_options(chosen, spec)


def _require_options(chosen: ChosenAgent, spec: AgentSpec) -> None:
    """Raises SpecError for a chosen option that the command line does not have."""
    lines = chosen.spec.commands
    words = lines.interactive if spec.is_interactive else lines.headless
    other = lines.headless if spec.is_interactive else lines.interactive
    for name, kind, value in (
        ("model", "a model", spec.model),
        ("effort", "an effort", spec.effort),
    ):
        if not value or has_option(lines, words, name):
            continue
        where = " on its own screen" if spec.is_interactive else ""
        elsewhere = (
            f'atoll spawn {chosen.name} "PROMPT" --{name} {value}'
            if spec.is_interactive
            else f"atoll spawn {chosen.name} -i --{name} {value}"
        )
        raise SpecError(
            f"`{chosen.name}` has no option for {kind}{where}",
            hint=elsewhere if has_option(lines, other, name) else f"omit `--{name}`",
        )


def find_names(spec: AgentSpec, prompt: str, agent: str, taken: Collection[str]) -> tuple[str, ...]:
    """The names of the new capsules: the one that was given, or a free one made from the prompt."""
    if spec.name is not None:
        return tuple(numbered(spec.name, spec.number))
    stem = find_name(prompt) if prompt else agent
    return tuple(_free_names(stem, spec.number, set(taken)))


def _free_names(stem: str, count: int, taken: set[str]) -> Sequence[str]:
    found: list[str] = []
    if count == 1 and stem not in taken:
        return [parse_name(stem)]
    number = 1 if count > 1 else 2
    while len(found) < count:
        end = f"-{number}"
        name = stem[: NAME_LENGTH - len(end)].rstrip("-") + end
        if name not in taken:
            found.append(parse_name(name))
        number += 1
    return found


def require_possible(planned: SpawnPlan, capsule: CapsulePlan) -> None:
    """Raises IsolationError when the agent could not work in the planned capsule."""
    agents.require_level(capsule.level)
    if planned.chosen.login is not None and not rules.has_egress(capsule.level, capsule.isolation):
        raise IsolationError(
            f"`{planned.chosen.name}` has to reach its model, and a capsule with the network mode "
            "`none` has no network access",
            hint="--network allow",
        )


def without_other_models(planned: SpawnPlan, capsules: Sequence[CapsulePlan]) -> list[CapsulePlan]:
    """The plans without the hosts of all models, for when the owner has chosen no rules.

    The agent reaches its own model through the broker, which accepts only its placeholder. At other
    models it could use somebody else's key, and so carry data out.
    """
    if planned.chosen.login is None:
        return list(capsules)
    return [_without_models(capsule) for capsule in capsules]


def _without_models(capsule: CapsulePlan) -> CapsulePlan:
    allow = tuple(rule for rule in capsule.isolation.allow if rule != MODEL_APIS)
    return capsule._replace(isolation=capsule.isolation._replace(allow=allow))
