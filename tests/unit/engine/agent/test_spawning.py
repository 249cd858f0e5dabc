"""What a request may ask of an agent: only what the command line that will be used can do."""

from __future__ import annotations

import pytest

from atoll.drivers import registry
from atoll.engine.agent.selection import ChosenAgent
from atoll.engine.agent.spawning import require_ways
from atoll.model.adapter import AdapterSpec, CommandLines
from atoll.model.agent import AgentSpec
from atoll.model.errors import SpecError


def built_in(name: str) -> ChosenAgent:
    return ChosenAgent(name, registry.adapters({})[name])


@pytest.mark.parametrize("name", ["claude", "codex", "goose"])
def test_options_of_the_screen(name: str) -> None:
    require_ways(built_in(name), AgentSpec(prompt="p", is_interactive=True, model="m"))


def test_option_without_effect_is_refused() -> None:
    opencode = built_in("opencode")
    require_ways(opencode, AgentSpec(prompt="p", effort="high", model="m"))
    with pytest.raises(SpecError, match="no option for an effort on its own screen") as raised:
        require_ways(opencode, AgentSpec(is_interactive=True, effort="high"))
    assert raised.value.hint == 'atoll spawn opencode "PROMPT" --effort high'
    with pytest.raises(SpecError, match="`mini` has no option for an effort") as raised:
        require_ways(built_in("mini"), AgentSpec(prompt="p", effort="high"))
    assert raised.value.hint == "omit `--effort`"


def test_words_without_their_place_are_no_option() -> None:
    lines = CommandLines(
        headless=("mine", "{prompt}"), interactive=("mine", "{model_options}"),
        model=("-m", "{model}"),
    )  # fmt: skip
    mine = ChosenAgent("mine", AdapterSpec(program="mine", commands=lines))
    with pytest.raises(SpecError, match="`mine` has no option for a model") as raised:
        require_ways(mine, AgentSpec(prompt="p", model="m"))
    assert raised.value.hint == "atoll spawn mine -i --model m"


def test_model_in_the_command_line_of_the_owner() -> None:
    lines = CommandLines(headless=("run", "--model={model}", "{prompt}"))
    mine = ChosenAgent("command", AdapterSpec(commands=lines), command=lines.headless)
    require_ways(mine, AgentSpec(prompt="p", model="m"))
