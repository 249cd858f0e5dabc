"""Budgets of agents and projects: what may be used, what was used, and whether that is too much.

The broker stores what an answer of a model took as soon as it is complete, so no crash of the
daemon loses more than the answers that were under way. What it cannot count is never taken for
nothing: a budget of tokens or money that is not known to hold is used up. Requests that are under
way when a budget is reached are not cut, so it can be exceeded by them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from atoll.engine.project.settings import load_user_file, user_file_path
from atoll.engine.state.session import Session
from atoll.model import units
from atoll.model.agent import AgentBudget, ModelUsage
from atoll.model.errors import AtollError, SpecError
from atoll.model.names import printable
from atoll.model.prices import Price, find_price

_HINT = "--budget 5 (US dollars), tokens=200k, turns=20, time=30m; with `+` more than now: +5"
_SHOWN_MODELS = 3
_MOST_USD = 1e9


class OwnerLimits(NamedTuple):
    """What the owner's settings say, for every project."""

    project: AgentBudget = AgentBudget()
    prices: Mapping[str, Price] = {}


class Spent(NamedTuple):
    """What one agent, or all agents of a project, have used."""

    requests: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    """Of what has a known price."""
    unpriced: tuple[str, ...] = ()
    """The models whose price is unknown."""
    uncounted: tuple[str, ...] = ()
    """The models of which some answers did not say how many tokens they took."""
    messages: int = 0
    """To the agent: the turns of `atoll agents`."""
    time_s: float = 0.0


class Excess(NamedTuple):
    """Why an agent may not use more."""

    reason: str
    """In words such as "12,000 of 10,000 tokens"."""
    cure: str = ""
    """What `tell --budget` takes to let it go on; empty when the owner's settings set the limit."""
    is_limit: bool = True
    """False when it is only not known whether there is a limit."""


def find_excess(session: Session, capsule_id: int, *, messages: int = 0) -> str | None:
    """The reason of `find_excess_and_cure` alone."""
    found = find_excess_and_cure(session, capsule_id, messages=messages)
    return None if found is None else found.reason


def find_excess_and_cure(session: Session, capsule_id: int, *, messages: int = 0) -> Excess | None:
    """None when the agent may use more. With `messages` the question is whether it may be sent so
    many more.
    """
    try:
        limits = owner_limits(session)
    except (AtollError, OSError) as error:
        # They may set a limit.
        said = error.message if isinstance(error, AtollError) else error.strerror
        return Excess(f"your settings cannot be read: {said}", is_limit=False)
    agent = session.store.find_agent(capsule_id)
    if agent is not None and agent.is_damaged:
        return Excess(agent.reason, is_limit=False)
    if agent is not None and any(limit is not None for limit in agent.task.budget):
        spent = spent_by(session, [capsule_id], limits.prices)
        found = _compare(agent.task.budget, spent, messages, "")
        if found is not None:
            return found
    return _find_excess_of_project(session, capsule_id, limits, messages)


def find_excess_of_project(session: Session, capsule_id: int) -> str | None:
    """Why no agent of the capsule's project may be started. Raises SpecError for the settings."""
    found = _find_excess_of_project(session, capsule_id, owner_limits(session), 1)
    return None if found is None else found.reason


def _find_excess_of_project(
    session: Session, capsule_id: int, limits: OwnerLimits, messages: int
) -> Excess | None:
    if all(limit is None for limit in limits.project):
        return None
    spent = spent_by(session, _neighbours(session, capsule_id), limits.prices)
    found = _compare(limits.project, spent, messages, " in this project")
    return None if found is None else Excess(found.reason)


def time_left_s(session: Session, capsule_id: int) -> float | None:
    """What the budgets of an agent and of its project leave; None without a limit of time."""
    own, project = limits_of(session, capsule_id)
    left = [
        limit.time_s - spent_by(session, capsules, {}).time_s
        for limit, capsules in (
            (own, [capsule_id]),
            (project, _neighbours(session, capsule_id)),
        )
        if limit.time_s is not None
    ]
    return min(left, default=None)


def limits_of(session: Session, capsule_id: int) -> tuple[AgentBudget, AgentBudget]:
    """The budget of an agent, and that of its project. Raises SpecError for the settings."""
    agent = session.store.find_agent(capsule_id)
    own = AgentBudget() if agent is None else agent.task.budget
    return own, owner_limits(session).project


def spent_by(session: Session, capsules: Iterable[int], prices: Mapping[str, Price]) -> Spent:
    """The sum over these capsules."""
    rows, messages, time_s = list[ModelUsage](), 0, 0.0
    for capsule_id in capsules:
        rows += session.store.usage(capsule_id)
        turns = session.store.turns(capsule_id)
        messages += len(turns)
        time_s += _time_s(session, capsule_id, {turn.run for turn in turns})
    costs = {row.model: cost_usd(row, prices) for row in rows}
    return Spent(
        requests=sum(row.requests for row in rows),
        tokens=sum(row.input_tokens + row.output_tokens for row in rows),
        cost_usd=sum(cost_usd(row, prices) or 0.0 for row in rows),
        unpriced=tuple(
            sorted({r.model for r in rows if costs[r.model] is None and not r.uncounted})
        ),
        uncounted=tuple(sorted({row.model for row in rows if row.uncounted})),
        messages=messages,
        time_s=time_s,
    )


def cost_usd(usage: ModelUsage, prices: Mapping[str, Price]) -> float | None:
    """What was counted; when the price was unknown then, by the price that is known now."""
    if usage.cost_usd is not None or usage.uncounted:
        return usage.cost_usd
    price = find_price(usage.model, prices)
    if price is None:
        return None
    return price.cost_usd(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read=usage.cached_tokens,
    )


_loaded: dict[str, tuple[tuple[int, ...], OwnerLimits]] = {}
"""By path of the settings file: they are needed for every request to a model."""


def owner_limits(session: Session) -> OwnerLimits:
    """Raises SpecError or StateError when the settings cannot be used, OSError likewise."""
    path = str(user_file_path(session.owner))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return OwnerLimits()
    stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    if path in _loaded and _loaded[path][0] == stamp:
        return _loaded[path][1]
    file = load_user_file(session.owner)
    if file is None:
        return OwnerLimits()
    given = file.budget
    found = OwnerLimits(
        AgentBudget(given.time_s, given.turns, given.tokens, given.cost),
        {
            prefix: Price(price.input, price.output, price.cache_read, price.cache_write)
            for prefix, price in file.prices.items()
        },
    )
    _loaded.clear()
    _loaded[path] = stamp, found
    return found


def parse_budget(text: str, current: AgentBudget, spent: Spent | None = None) -> AgentBudget:
    """A budget after a change such as `+5`, `5usd`, `cost=5`, `tokens=+200k` or `time=none`.

    What is added to a limit that there is not yet is added to `spent`. Raises SpecError.
    """
    name, equals, value = text.strip().rpartition("=")
    if not equals:
        name, value = "cost", _as_cost(text)
    if name.startswith("+"):
        name, value = name[1:], f"+{value}"
    kind = _KINDS.get(name.strip())
    if kind is None:
        raise SpecError(f"`{text}` is not a budget", hint=_HINT)
    if value == "none":
        return current._replace(**{kind.field: None})
    is_more = value.startswith("+")
    try:
        number = kind.parse(value.removeprefix("+").strip())
        if is_more:
            before = getattr(current, kind.field)
            used = 0 if spent is None else kind.used(spent)
            number += used if before is None else before
            number = kind.check(number)
    except ValueError as error:
        raise SpecError(f"`{text}` is not a budget: {error}", hint=_HINT) from error
    return AgentBudget(**{**current._asdict(), kind.field: number})


def _as_cost(text: str) -> str:
    """The number in `5`, `+5`, `$5`, `+$5` and `5usd`; anything else is ambiguous."""
    match = re.fullmatch(r"(\+?)\s*\$?([0-9.]+)\s*(?:usd|USD)?", text.strip())
    if match is None:
        raise SpecError(f"`{text}` is not a budget", hint=_HINT)
    return match[1] + match[2]


def _parse_usd(text: str) -> float:
    if not re.fullmatch(r"\$?[0-9]{1,10}(?:\.[0-9]{1,6})?|\$?\.[0-9]{1,6}", text):
        raise ValueError("must be a number of US dollars such as `5` or `0.25`")
    return _check_usd(float(text.removeprefix("$")))


def _check_usd(number: float) -> float:
    if number > _MOST_USD:
        raise ValueError(f"must be at most ${_MOST_USD:,.0f}")
    return number


def _parse_turns(text: str) -> int:
    return units.parse_count(text, lowest=1, highest=10**9)


def _check_turns(number: float) -> int:
    return min(int(number), 10**9)


class _Kind(NamedTuple):
    field: str
    parse: Callable[[str], float]
    check: Callable[[float], float]
    used: Callable[[Spent], float]


_KINDS = {
    "time": _Kind("time_s", units.parse_duration_s, units.require_duration_s, lambda s: s.time_s),
    "turns": _Kind("turns", _parse_turns, _check_turns, lambda s: max(s.requests, s.messages)),
    "tokens": _Kind(
        "tokens", units.parse_tokens, lambda n: units.require_tokens(int(n)), lambda s: s.tokens
    ),
    "cost": _Kind("cost_usd", _parse_usd, _check_usd, lambda s: s.cost_usd),
}


def _neighbours(session: Session, capsule_id: int) -> list[int]:
    """The capsules of the same project, this one too."""
    capsule = session.store.capsule(capsule_id)
    if capsule is None:
        return [capsule_id]
    return [other.id for other in session.store.capsules(capsule.project_id)]


def _time_s(session: Session, capsule_id: int, numbers: set[int]) -> float:
    """How long the runs with these numbers took so far, without the time in which the model's
    requests were held.
    """
    if not numbers:
        return 0.0
    capsule = session.store.capsule(capsule_id)
    if capsule is None:
        return 0.0
    now = time.time()
    taken_s = sum(
        max(0.0, (now if run.ended_at is None else run.ended_at) - run.created_at)
        for run in session.store.runs(capsule)
        if run.number in numbers
    )
    return max(0.0, taken_s - session.store.traffic(capsule_id).held_at(now))


def _compare(limit: AgentBudget, spent: Spent, messages: int, where: str) -> Excess | None:
    if limit.time_s is not None and spent.time_s >= limit.time_s:
        used, most = units.render_duration(int(spent.time_s)), units.render_duration(limit.time_s)
        return Excess(f"{used} of {most}{where}", "time=+30m")
    if limit.turns is not None:
        turns = units.counted(limit.turns, "turn")
        if spent.requests >= limit.turns:
            return Excess(f"{spent.requests:,} of {turns} of the model{where}", "turns=+20")
        # A message is answered by one turn of the model at least, if it is one that is seen.
        if spent.messages + messages > limit.turns:
            used_turns = spent.messages + max(0, messages - 1)
            return Excess(f"{used_turns:,} of {turns}{where}", "turns=+20")
    if limit.tokens is not None:
        if spent.tokens >= limit.tokens:
            return Excess(f"{spent.tokens:,} of {limit.tokens:,} tokens{where}", "tokens=+200k")
        if spent.uncounted:
            return Excess(_uncounted(spent, where), "tokens=none")
    return None if limit.cost_usd is None else _compare_cost(limit.cost_usd, spent, where)


def _compare_cost(limit_usd: float, spent: Spent, where: str) -> Excess | None:
    if spent.cost_usd >= limit_usd:
        used, most = units.render_usd(spent.cost_usd), units.render_usd(limit_usd)
        return Excess(f"{used} of {most}{where}", "+5")
    if spent.unpriced:
        model = printable(spent.unpriced[0]) or "MODEL"
        return Excess(
            f'the price of {_named(spent.unpriced)} is unknown: set [prices."{model}"] in your '
            "settings",
            "cost=none",
        )
    return Excess(_uncounted(spent, where), "cost=none") if spent.uncounted else None


def _uncounted(spent: Spent, where: str) -> str:
    return f"{_named(spent.uncounted)} did not say how many tokens were used{where}"


def _named(models: Sequence[str]) -> str:
    named = models[:_SHOWN_MODELS]
    shown = ", ".join(f"`{printable(model)}`" if model else "a model" for model in named)
    left = len(models) - _SHOWN_MODELS
    return f"{shown} and {left} more" if left > 0 else shown
