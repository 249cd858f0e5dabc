"""The candidates that a request asks for: agents, prompts, variables and repeats, multiplied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from atoll.engine.agent import spawning
from atoll.engine.agent.preparation import SCRIPT
from atoll.engine.agent.prompts import require_prompt
from atoll.engine.agent.selection import COMMAND_NAME, SCRIPT_NAME
from atoll.engine.run import run_environment
from atoll.engine.state.session import Session
from atoll.model.agent import AgentSpec
from atoll.model.errors import SpecError
from atoll.model.names import NAME_LENGTH, printable, slug
from atoll.model.race import CandidateSpec, RaceRequest
from atoll.model.state import ProjectRecord

MOST = 100
_COUNTED = re.compile(r"(.*[^:]):([0-9]{1,4})", re.DOTALL)
_PROMPT = "{prompt}"
RACE_NAME_LENGTH = 28
"""Leaves room for what a candidate adds to it."""


class Entrant(NamedTuple):
    """A candidate before it has a name."""

    label: str
    """What it adds to the name of the race; empty when only its number tells it apart."""
    spec: CandidateSpec


class _Alternative(NamedTuple):
    """One of the values of something that candidates differ in."""

    label: str
    apply: Callable[[CandidateSpec], CandidateSpec]


def find_entries(session: Session, project: ProjectRecord, request: RaceRequest) -> list[Entrant]:
    """The candidates in their order. Raises SpecError, and what `spawn` raises for its agents."""
    _require_consistent(request)
    prompts = [require_prompt(text) for text in request.prompts or _given(request.prompt)]
    counted = [_parse_agent(text) for word in request.agents for text in _words(word)]
    number = request.number * (sum(count for _, count in counted) or 1)
    number *= max(1, len(prompts))
    vary = [_parse_vary(word) for word in request.vary]
    for _, values in vary:
        number *= len(values)
    # Before anything is multiplied.
    if number > MOST:
        raise SpecError(f"these are {number} candidates: a race has at most {MOST}")
    _require_distinct([name for name, _ in vary])
    choices: list[list[_Alternative]] = []
    if _needs_agent(request):
        found: list[tuple[str | None, int]] = [*counted] or [(None, 1)]
        choices.append([*_agents(session, project, request, prompts, found)])
    else:
        choices.append([_Alternative("", lambda spec: spec._replace(argv=request.argv))])
    choices.append(_prompt_choices(prompts))
    choices += [[_variable(name, value) for value in values] for name, values in vary]
    choices.append([_Alternative("", lambda spec: spec)] * request.number)
    return [_combine(several) for several in product(*choices)]


def name_candidates(race: str, entries: Sequence[Entrant]) -> list[str]:
    """A name for each: the race's with the label of the candidate, numbered where labels are the
    same.
    """
    room = NAME_LENGTH - len(race) - len(f"-{MOST}") - 1
    labels = [entry.label[:room].strip("-") for entry in entries]
    names: list[str] = []
    counts: dict[str, int] = {}
    for label in labels:
        stem = f"{race}-{label}" if label else race
        name = stem
        while (label and labels.count(label) > 1) or not label or name in names:
            counts[stem] = counts.get(stem, 0) + 1
            name = f"{stem}-{counts[stem]}"
            if name not in names:
                break
        names.append(name)
    return names


def _combine(choices: Sequence[_Alternative]) -> Entrant:
    spec = CandidateSpec()
    for choice in choices:
        spec = choice.apply(spec)
    if not spec.agent:
        argv = tuple(word.replace(_PROMPT, spec.prompt) for word in spec.argv)
        spec = spec._replace(argv=argv)
    return Entrant("-".join(choice.label for choice in choices if choice.label), spec)


def _needs_agent(request: RaceRequest) -> bool:
    """Whether agents take part, and not a command alone."""
    return bool(request.agents) or not request.argv


def _require_consistent(request: RaceRequest) -> None:
    form = 'atoll race "PROMPT" --agents claude:2,codex, or: atoll race -- COMMAND'
    if not request.number >= 1:
        raise SpecError(f"`-n` must be from 1 to {MOST}")
    if request.prompt and request.prompts:
        raise SpecError("`--prompts` and PROMPT are both given", hint="omit one of them")
    if _needs_agent(request):
        if not request.prompt and not request.prompts:
            raise SpecError("a race needs a prompt or a command", hint=form)
        return
    has_place = any(_PROMPT in word for word in request.argv)
    if request.prompt:
        raise SpecError(
            "a command gets no prompt", hint='--agents NAME, or: atoll race "PROMPT" --agents …'
        )
    if request.prompts and not has_place:
        raise SpecError(
            f"the prompts are not used: no word of the command line has {_PROMPT}",
            hint=f"atoll race --prompts FILE -- COMMAND {_PROMPT}",
        )
    if request.model:
        raise SpecError("`--model` is for agents", hint="--vary MODEL=a,b")
    if request.budget:
        raise SpecError("`--budget` is for agents", hint="--timeout and --limit are for commands")


def _given(prompt: str | bytes) -> tuple[str | bytes, ...]:
    return (prompt,) if prompt else ()


def _words(text: str) -> list[str]:
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise SpecError(
            f"`--agents {printable(text[:60])}` has an empty name",
            hint="--agents claude:2,codex",
        )
    return found


def _parse_agent(text: str) -> tuple[str, int]:
    match = _COUNTED.fullmatch(text)
    if match is None:
        return text, 1
    count = int(match[2])
    if not 1 <= count <= MOST:
        raise SpecError(f"`--agents {printable(text[:60])}`: the number must be from 1 to {MOST}")
    return match[1], count


def _agents(
    session: Session,
    project: ProjectRecord,
    request: RaceRequest,
    prompts: Sequence[str],
    counted: Sequence[tuple[str | None, int]],
) -> Iterator[_Alternative]:
    """Each agent as often as it was asked for, with what `spawn` would start."""
    if request.argv and COMMAND_NAME not in [name for name, _ in counted]:
        raise SpecError(
            "agents get no command line",
            hint='atoll race "PROMPT" --agents command -- CMD {prompt}',
        )
    for name, count in counted:
        spec = AgentSpec(
            agent=name,
            prompt=prompts[0],
            command=request.argv if name == COMMAND_NAME else (),
            name="candidate",
            model=request.model,
            budget=request.budget,
            timeout_s=request.timeout_s,
        )
        chosen = spawning.plan(session, project, spec, ()).chosen
        script = ""
        if chosen.name == SCRIPT_NAME:
            content = next(file.content for file in chosen.files if file.path == SCRIPT)
            script = _require_text(str(name), content)
        adapter = chosen.name
        base = CandidateSpec(agent=adapter, argv=chosen.command, model=request.model, script=script)
        label = slug(Path(str(name)).stem) if script else slug(adapter)
        for _ in range(count):
            yield _Alternative(label or slug(adapter), lambda _, base=base: base)  # type: ignore[misc]


def _require_text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SpecError(f"`{printable(name)}` is not UTF-8 text") from None


def _prompt_choices(prompts: Sequence[str]) -> list[_Alternative]:
    if not prompts:
        return [_Alternative("", lambda spec: spec)]
    labels = [""] if len(prompts) == 1 else [f"p{number}" for number in range(1, len(prompts) + 1)]
    return [
        _Alternative(label, lambda spec, text=text: spec._replace(prompt=text))  # type: ignore[misc]
        for label, text in zip(labels, prompts, strict=True)
    ]


def _variable(name: str, value: str) -> _Alternative:
    def apply(spec: CandidateSpec) -> CandidateSpec:
        return spec._replace(env={**spec.env, name: value})

    return _Alternative(slug(value) or slug(name), apply)


def _parse_vary(word: str) -> tuple[str, list[str]]:
    name, equals, text = word.partition("=")
    shown = printable(word[:60])
    if not equals or not name:
        raise SpecError(f"`--vary {shown}` is not of the form `NAME=a,b`", hint="--vary MODEL=a,b")
    values = text.split(",")
    if len(values) > MOST:
        raise SpecError(f"`--vary {name}` has {len(values)} values: a race has at most {MOST}")
    for value in values:
        run_environment.require_variables({name: value})
    if len(set(values)) != len(values):
        raise SpecError(f"`--vary {shown}` has a value twice", hint="-n 2 repeats every candidate")
    return name, values


def _require_distinct(names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"`--vary {printable(twice)}` is given twice", hint=f"--vary {twice}=a,b,c")


def parse_prompts(text: bytes, source: str) -> tuple[str, ...]:
    """The prompts of a file: the blocks between lines that are `---`, or without such a line every
    line that is not empty. Raises SpecError.
    """
    content = require_prompt(text)
    lines = content.splitlines()
    is_mark = [line.strip() == "---" for line in lines]
    if not any(is_mark):
        found = [line.strip() for line in lines]
    else:
        blocks: list[list[str]] = [[]]
        for line, mark in zip(lines, is_mark, strict=True):
            if mark:
                blocks.append([])
            else:
                blocks[-1].append(line)
        found = ["\n".join(block).strip() for block in blocks]
    prompts = tuple(prompt for prompt in found if prompt)
    if not prompts:
        raise SpecError(f"`{printable(source)}` has no prompt")
    if len(prompts) > MOST:
        raise SpecError(
            f"`{printable(source)}` has {len(prompts)} prompts: a race has at most {MOST}",
            hint="a prompt of several lines: put a line `---` between prompts",
        )
    return prompts
