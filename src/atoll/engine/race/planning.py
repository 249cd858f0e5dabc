"""What a race will do, decided and checked before anything is made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.engine.agent import agents, selection, spawning
from atoll.engine.agent.prompts import find_name
from atoll.engine.agent.selection import SCRIPT_NAME, ChosenAgent
from atoll.engine.agent.spawning import SpawnPlan
from atoll.engine.capsule import creation, planning
from atoll.engine.check.selection import choose_checks, find_checks, select_checks
from atoll.engine.project import settings
from atoll.engine.project.settings import Config
from atoll.engine.promotion.acceptance import parse_accepted
from atoll.engine.promotion.stages import load_stages
from atoll.engine.race.candidate_specs import (
    RACE_NAME_LENGTH,
    Entrant,
    find_entries,
    name_candidates,
)
from atoll.engine.race.evidence.ranking import JUDGE, lone_judge
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.agent import AgentTask
from atoll.model.check import CheckSpec
from atoll.model.errors import SpecError, StateError
from atoll.model.evidence import CRITERIA
from atoll.model.names import BRANCH_PREFIX, parse_name, printable
from atoll.model.plan import CapsulePlan
from atoll.model.race import CandidateSpec, Race, RaceRequest, RaceSpec
from atoll.model.state import ProjectRecord

_TASK_CHARACTERS = 200


class RacePlan(NamedTuple):
    """What will be stored."""

    name: str
    base_commit: str
    spec: RaceSpec
    names: tuple[str, ...]
    """Of the candidates."""


def plan_race(session: Session, project: ProjectRecord, request: RaceRequest) -> RacePlan:
    """Checks a whole request; makes nothing. Raises what `new`, `spawn` and `check` raise."""
    entries = find_entries(session, project, request)
    name, names = _find_names(session, project, request, entries)
    checks = find_race_checks(session, project, request)
    if request.most is not None and request.most < 1:
        raise SpecError("`--max` must be at least 1")
    _require_rule(request.rule, checks)
    if request.promote_to and not checks:
        raise SpecError(
            "`--promote` needs checks: nothing is promoted that was not verified",
            hint="--check 'make test', or declare checks in atoll.toml",
        )
    if request.promote_to:
        load_stages(session, project, request.promote_to)
    elif request.accept:
        raise SpecError("`--accept` is for what `--promote` brings in", hint="--promote")
    given = _given(request)
    config = settings.load_config(Path(project.root), session.owner, given=given)
    plans = planning.plan_capsules(session, project, names, config)
    _require_workspaces(plans)
    creation.require_free(session, project, plans)
    spec = RaceSpec(
        task=_task_of(request),
        candidates=tuple(entry.spec for entry in entries),
        checks=tuple(checks),
        # Also when it came from the environment, which another process may not have.
        level=config.settings.value("capsule.level"),
        network=request.network,
        limits=request.limits,
        budget=agents.parse_budgets(request.budget),
        timeout_s=request.timeout_s,
        most=request.most,
        has_cross_tests=request.has_cross_tests,
        rule=request.rule,
        judge=request.judge,
        promote_to=request.promote_to,
        accept=parse_accepted(request.accept),
        base_ref=plans[0].base_ref,
    )
    for entry, plan in zip(entries, plans, strict=True):
        if entry.spec.agent:
            spawned = spawn_plan(session, project, spec, entry.spec, plan.name)
            spawning.require_possible(spawned, plan)
    return RacePlan(name, plans[0].base_commit, spec, tuple(names))


def plan_candidate(
    session: Session, project: ProjectRecord, race: Race, name: str, candidate: CandidateSpec
) -> CapsulePlan:
    """The capsule of a candidate, from the base that the race began with."""
    spec = race.spec
    given = {
        **settings.parse_limits(spec.limits),
        "project.base": race.base_commit,
        **({} if spec.level is None else {"capsule.level": spec.level}),
        **({} if spec.network is None else {"capsule.network": spec.network}),
    }
    config = settings.load_config(Path(project.root), session.owner, given=given)
    [plan] = planning.plan_capsules(session, project, [name], config)
    if candidate.agent and not _has_chosen_rules(config):
        spawned = spawn_plan(session, project, spec, candidate, name)
        [plan] = spawning.without_other_models(spawned, [plan])
    return plan._replace(base_ref=spec.base_ref or plan.base_ref)


def _has_chosen_rules(config: Config) -> bool:
    rules = config.settings.values.get("capsule.allow")
    return rules is not None and rules.source != "default"


def spawn_plan(
    session: Session, project: ProjectRecord, spec: RaceSpec, candidate: CandidateSpec, name: str
) -> SpawnPlan:
    """What `spawn` would start for a candidate."""
    task = AgentTask(
        prompt=candidate.prompt,
        model=candidate.model,
        budget=spec.budget,
        command=candidate.argv,
        timeout_s=spec.timeout_s,
    )
    return SpawnPlan(choose_agent(session, project, candidate), task, (name,))


def choose_agent(session: Session, project: ProjectRecord, candidate: CandidateSpec) -> ChosenAgent:
    """The agent of a candidate; a script is the one that was stored with the race."""
    if candidate.agent == SCRIPT_NAME:
        return selection.scripted(candidate.script.encode())
    return selection.choose(session, project, candidate.agent, candidate.argv)


def find_race_checks(
    session: Session, project: ProjectRecord, request: RaceRequest
) -> list[CheckSpec]:
    """The checks of a request: by name, as commands, or the project's own; none if it has none."""
    if not request.has_checks:
        if request.checks:
            raise SpecError("`--check` and `--no-checks` are both given", hint="omit one of them")
        return []
    if not request.checks:
        return select_checks(session, project) if find_checks(session, project) else []
    return choose_checks(session, project, request.checks)


def _require_rule(rule: str, checks: Sequence[CheckSpec]) -> None:
    """Raises SpecError for a rule that no evidence can satisfy, before it takes hours to say so."""
    if not rule:
        return
    has_figures = any(check.has_figures for check in checks)
    for word in (word.strip() for word in rule.split(",")):
        name, _, better = word.partition(":")
        known = name.strip() in {"checks", *CRITERIA}
        if not (known or has_figures) or better.strip() not in ("", "lower", "higher"):
            raise SpecError(
                f"the rule has an unknown criterion `{printable(word[:60])}`",
                hint=f'--rule "checks, crosstests, diff:lower"; one of: {", ".join(CRITERIA)}',
            )
    if [word.partition(":")[0].strip() for word in rule.split(",")] == [JUDGE]:
        raise lone_judge()


def _given(request: RaceRequest) -> dict[str, str]:
    words = {
        "capsule.level": request.level,
        "project.base": request.base,
        "capsule.network": request.network,
    }
    named = {key: text for key, text in words.items() if text is not None}
    return {**named, **settings.parse_limits(request.limits)}


def _require_workspaces(plans: Sequence[CapsulePlan]) -> None:
    if plans[0].workspace.branch is None:
        raise SpecError(
            f"at level `{plans[0].level}` all candidates would work in the checkout itself",
            hint="--level sandbox",
        )


def _task_of(request: RaceRequest) -> str:
    """What a race is about, in one line."""
    if request.prompt:
        text = request.prompt if isinstance(request.prompt, str) else request.prompt.decode()
    else:
        text = request.prompts[0] if request.prompts else shlex.join(request.argv)
    line = printable(" ".join(text.split()))
    return line if len(line) <= _TASK_CHARACTERS else line[: _TASK_CHARACTERS - 1] + "…"


def _find_names(
    session: Session, project: ProjectRecord, request: RaceRequest, entries: Sequence[Entrant]
) -> tuple[str, list[str]]:
    """The name of the race and those of its candidates; without a given one, the first free one."""
    capsules = {record.name for record in session.store.capsules(project.id)}
    prefix = f"refs/heads/{BRANCH_PREFIX}"
    branches = {ref.removeprefix(prefix) for ref, _ in git.refs_below(prefix, cwd=project.git_dir)}
    races = session.store.races(project.id)
    taken = capsules | branches
    # Also those whose capsules do not exist yet, or were removed and may come back.
    entered = {one.name for race in races for one in session.store.candidates(race.id)}
    if request.name is not None:
        name = parse_name(request.name)
        if len(name) > RACE_NAME_LENGTH:
            raise SpecError(
                f"the name of a race has at most {RACE_NAME_LENGTH} characters, since those of "
                "its candidates begin with it",
                hint=f"--name {name[:RACE_NAME_LENGTH].strip('-')}",
            )
        names = name_candidates(name, entries)
        if any(race.name == name for race in races):
            raise StateError(
                f"the race `{name}` already exists",
                hint=f"atoll race show {name}, or choose another name",
            )
        _require_untaken(names, taken, entered)
        return name, names
    stem = _stem_of(request)
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}-{number}"
        names = name_candidates(name, entries)
        is_used = any(race.name == name for race in races)
        if not is_used and (taken | entered).isdisjoint(names):
            return name, names
        number += 1


def _require_untaken(names: Sequence[str], taken: set[str], entered: set[str]) -> None:
    for name in names:
        if name in taken:
            raise StateError(
                f"there is a capsule or a branch `{BRANCH_PREFIX}{name}` already",
                hint="choose another name for the race: --name NAME",
            )
        if name in entered:
            raise StateError(
                f"`{name}` is a candidate of another race",
                hint="choose another name for the race: --name NAME",
            )


def _stem_of(request: RaceRequest) -> str:
    prompt = request.prompt or (request.prompts[0] if request.prompts else "")
    if not prompt:
        return "race"
    text = prompt if isinstance(prompt, str) else prompt.decode()
    return find_name(text)[: RACE_NAME_LENGTH - 4].strip("-") or "race"
