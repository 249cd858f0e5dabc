"""When the program of a run was last active, judged from its output, CPU time and processes.

What the eight full-screen agents that were measured do: one that works writes several times per
second, and one that waits for a person writes nothing, but its event loop uses up to 4 % of a CPU
and its garbage collector up to 20 % for a second. An owner who types into an attached screen causes
output too, so that output alone does not make a screen active: it prolongs activity that the model
traffic, a message, a tool or sustained CPU use has shown.
"""

from __future__ import annotations

from typing import NamedTuple

from atoll.engine.agent.status import WAITING_S

_HEADLESS_SHARE = 0.02
_SCREEN_SHARE = 0.25
"""Of one CPU, over at least `_WINDOW_S`."""
_WINDOW_S = 5.0
"""The clock of CPU time has ticks of 10 ms, which are much of a short time."""
_MEMORY_S = 30.0
"""A screen's CPU use over a longer time does not say when it was."""
_SAMPLE_S = 1.0
_STEADY_S = 2.0
"""Output with longer pauses is not steady."""
_LONG_S = 4.0
"""Steady output of this length shows work where no model traffic is counted."""
_TOOL_AGE_S = 2.0
_TOOL_BEFORE_S, _TOOL_AFTER_S = 0.1, 5.0
"""A tool starts this close to the end of the answer that calls it."""


class CpuSample(NamedTuple):
    """The CPU time of all processes of a run at one moment."""

    at: float
    cpu_s: float


class RunFacts(NamedTuple):
    """What was observed of a run at one moment."""

    now: float
    is_screen: bool = False
    created_at: float = 0.0
    asked_at: float = 0.0
    """When the last message was sent."""
    model_at: float = 0.0
    """When the last byte of model traffic passed; 0 when none was counted."""
    written: tuple[float, ...] = ()
    """When it wrote output, the oldest first; at least the end of it."""
    is_cut: bool = False
    """Whether there was output before `written`."""
    started: tuple[float, ...] = ()
    """When its processes started."""
    has_changed: bool = False
    """Whether it has other processes than at the last look."""
    samples: tuple[CpuSample, ...] = ()
    """Of earlier looks and of this one, the oldest first."""
    busy_at: float = 0.0
    """When an earlier look found that it used the CPU."""


def find_busy_at(facts: RunFacts) -> float:
    """When it last used the CPU as a program that works. Pure."""
    if facts.is_screen:
        is_busy = _cpu_share(facts.samples, _MEMORY_S) > _SCREEN_SHARE
    else:
        is_busy = facts.has_changed or _cpu_share(facts.samples, None) > _HEADLESS_SHARE
    return facts.now if is_busy else max(facts.busy_at, facts.created_at)


def find_active_at(facts: RunFacts) -> float:
    """When it was last active. Pure."""
    wrote_at = facts.written[-1] if facts.written else 0.0
    busy_at = find_busy_at(facts)
    if not facts.is_screen:
        return max(wrote_at, busy_at)
    known_at = max(busy_at, facts.asked_at, facts.model_at, _tool_at(facts))
    steady_at = _steady_since(facts)
    is_counted = facts.model_at > 0
    is_work = not is_counted and wrote_at - steady_at >= _LONG_S
    is_continued = steady_at <= known_at + WAITING_S
    return max(known_at, wrote_at) if is_work or is_continued else known_at


def add_sample(samples: tuple[CpuSample, ...], new: CpuSample) -> tuple[CpuSample, ...]:
    """The samples to remember; a look that follows soon on another one adds none. Pure."""
    if samples and 0 <= new.at - samples[-1].at < _SAMPLE_S:
        return samples
    recent = tuple(s for s in samples if 0 <= new.at - s.at <= _MEMORY_S)
    return (*(recent or samples[-1:]), new)


def parse_samples(value: object) -> tuple[CpuSample, ...]:
    """Samples from JSON; none from anything else."""
    found = []
    for pair in value if isinstance(value, list) else ():
        match pair:
            case [int() | float() as at, int() | float() as cpu_s]:
                found.append(CpuSample(float(at), float(cpu_s)))
    return tuple(found)


def _cpu_share(samples: tuple[CpuSample, ...], memory_s: float | None) -> float:
    """The share of one CPU since the last sample that is old enough; 0 without one."""
    if not samples:
        return 0.0
    now = samples[-1]
    base = next((s for s in reversed(samples) if now.at - s.at >= _WINDOW_S), None)
    if base is None or (memory_s is not None and now.at - base.at > memory_s):
        return 0.0
    return (now.cpu_s - base.cpu_s) / (now.at - base.at)


def _tool_at(facts: RunFacts) -> float:
    """The present while a process runs that the last answer or message has started.

    A server that an earlier answer has left running is older than the traffic after it.
    """
    is_typed = facts.asked_at > facts.created_at
    cause_at = max(facts.model_at, facts.asked_at if is_typed else 0.0)
    if not cause_at:
        return 0.0
    has_tool = any(
        -_TOOL_BEFORE_S <= at - cause_at <= _TOOL_AFTER_S and facts.now - at >= _TOOL_AGE_S
        for at in facts.started
    )
    return facts.now if has_tool else 0.0


def _steady_since(facts: RunFacts) -> float:
    """When the output began that has had no pause since."""
    since = facts.written[-1] if facts.written else 0.0
    for at in reversed(facts.written):
        if since - at > _STEADY_S:
            return since
        since = at
    return 0.0 if facts.is_cut else since
