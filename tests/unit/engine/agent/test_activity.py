"""When a program was active: tables of what full-screen programs were measured to do."""

from __future__ import annotations

import json

import pytest

from atoll.engine.agent.activity import (
    CpuSample,
    RunFacts,
    add_sample,
    find_active_at,
    find_busy_at,
    parse_samples,
)

NOW = 1_000_000.0
ASKED = NOW - 100
ANSWERED = NOW - 90
SCREEN = RunFacts(
    now=NOW, is_screen=True, created_at=NOW - 600, asked_at=ASKED, model_at=ANSWERED,
    written=(ANSWERED - 1, ANSWERED), started=(NOW - 599, NOW - 598), busy_at=NOW - 600,
)  # fmt: skip
UNCOUNTED = SCREEN._replace(model_at=0.0, written=(ASKED + 1,))


def cpu(*shares: float, every_s: float = 1.0) -> tuple[CpuSample, ...]:
    """Samples up to now, between which a run used these shares of one CPU."""
    used_s = 0.0
    found = [CpuSample(NOW - len(shares) * every_s, used_s)]
    for number, share in enumerate(shares, 1):
        used_s += share * every_s
        found.append(CpuSample(NOW - (len(shares) - number) * every_s, used_s))
    return tuple(found)


def steadily(begin_s: float, end_s: float = 0.0, every_s: float = 0.5) -> tuple[float, ...]:
    """Output from so many seconds ago until so many seconds ago."""
    count = int((begin_s - end_s) / every_s)
    return tuple(NOW - begin_s + number * every_s for number in range(count + 1))


SCREENS: dict[str, tuple[RunFacts, float]] = {
    "nothing happens": (SCREEN, ANSWERED),
    "an event loop": (SCREEN._replace(samples=cpu(*[0.04] * 10)), ANSWERED),
    "one tick between two quick looks": (
        SCREEN._replace(samples=(CpuSample(NOW - 0.1, 1.0), CpuSample(NOW, 1.01))),
        ANSWERED,
    ),
    "garbage is collected": (SCREEN._replace(samples=cpu(0, 0, 0, 0, 0.16, 0.2, 0)), ANSWERED),
    "a helper comes or goes": (SCREEN._replace(has_changed=True), ANSWERED),
    "sustained CPU use": (SCREEN._replace(samples=cpu(*[0.5] * 6)), NOW),
    "CPU use of a long time ago": (SCREEN._replace(samples=cpu(0.5, every_s=300)), ANSWERED),
    "CPU use at an earlier look": (SCREEN._replace(busy_at=NOW - 3), NOW - 3),
    "drawn again, for who attaches": (SCREEN._replace(written=(ANSWERED, NOW - 1)), ANSWERED),
    "its owner types": (SCREEN._replace(written=(ANSWERED, *steadily(20))), ANSWERED),
    "a spinner since the answer": (
        SCREEN._replace(written=(ANSWERED, *steadily(89))),
        NOW,
    ),
    "a spinner since before all that is known": (
        SCREEN._replace(written=steadily(20), is_cut=True),
        NOW,
    ),
    "a spinner that has stopped": (
        SCREEN._replace(written=(ANSWERED, *steadily(89, 30))),
        NOW - 30,
    ),
    "a message": (SCREEN._replace(asked_at=NOW - 1), NOW - 1),
    "model traffic": (SCREEN._replace(model_at=NOW - 2), NOW - 2),
    "a silent tool": (SCREEN._replace(started=(NOW - 599, ANSWERED + 0.2)), NOW),
    "a server of an earlier answer": (SCREEN._replace(started=(ANSWERED - 9,)), ANSWERED),
    "a helper that starts later": (SCREEN._replace(started=(NOW - 30,)), ANSWERED),
    "a process of this moment": (
        SCREEN._replace(model_at=NOW - 1.5, started=(NOW - 1,)),
        NOW - 1.5,
    ),
    "without counted traffic: one line": (
        UNCOUNTED._replace(written=(ASKED + 1, NOW - 1)),
        ASKED,
    ),
    "without counted traffic: an answer to the message": (UNCOUNTED, ASKED + 1),
    "without counted traffic: steady output": (
        UNCOUNTED._replace(written=(ASKED + 1, *steadily(10))),
        NOW,
    ),
}


@pytest.mark.parametrize("case", SCREENS)
def test_screen(case: str) -> None:
    facts, active_at = SCREENS[case]
    assert find_active_at(facts) == active_at


HEADLESS = SCREEN._replace(is_screen=False)
RUNS: dict[str, tuple[RunFacts, float]] = {
    "nothing happens": (HEADLESS, ANSWERED),
    "output": (HEADLESS._replace(written=(NOW - 3,)), NOW - 3),
    "an event loop": (HEADLESS._replace(samples=cpu(*[0.01] * 6)), ANSWERED),
    "one tick between two quick looks": (
        HEADLESS._replace(samples=(CpuSample(NOW - 0.1, 1.0), CpuSample(NOW, 1.01))),
        ANSWERED,
    ),
    "a little CPU use": (HEADLESS._replace(samples=cpu(*[0.05] * 6)), NOW),
    "CPU use since a look of long ago": (HEADLESS._replace(samples=cpu(0.5, every_s=300)), NOW),
    "other processes": (HEADLESS._replace(has_changed=True), NOW),
}


@pytest.mark.parametrize("case", RUNS)
def test_headless_run(case: str) -> None:
    facts, active_at = RUNS[case]
    assert find_active_at(facts) == active_at


def test_run_is_busy_from_its_creation_on() -> None:
    assert find_busy_at(RunFacts(now=NOW, created_at=NOW - 1)) == NOW - 1


def test_quick_looks_add_no_samples() -> None:
    samples: tuple[CpuSample, ...] = ()
    for look in range(100):
        samples = add_sample(samples, CpuSample(NOW + look / 10, look / 10))
    assert [sample.at for sample in samples] == [NOW + second for second in range(10)]
    later = add_sample(samples, CpuSample(NOW + 3600, 50.0))
    assert later == (samples[-1], CpuSample(NOW + 3600, 50.0))
    assert len(add_sample(tuple(cpu(*[0.1] * 90)), CpuSample(NOW + 1, 9.0))) < 32


def test_samples_survive_json() -> None:
    samples = cpu(0.1, 0.2)
    assert parse_samples(json.loads(json.dumps(samples))) == samples
    assert parse_samples({"at": 1}) == parse_samples([[1], ["a", "b"], None]) == ()
