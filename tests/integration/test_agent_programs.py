"""Real agents in capsules, against a scripted model that accepts nothing but the owner's real key.

`tools/setup dev` installs them. The model is on the host's loopback, where only the broker reaches
it: an agent that got its real key, or whose placeholder was not replaced, fails these tests.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.testing.model_script import Fault, Shell, Turn, Write, turns
from atoll.testing.model_server import ModelServer
from persons import ROOT
from terminals import Terminal

AGENTS = ("claude", "codex", "gemini", "goose", "opencode")
SESSION_FILES = ("claude", "codex", "gemini")
"""The agents whose events on their own screen come from their session file."""
KEY = "sk-real-0123456789-abcdefghij-REAL"
VARIABLES = {
    "claude": "ANTHROPIC_API_KEY",
    "codex": "CODEX_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "goose": "OPENAI_API_KEY",
    "opencode": "OPENAI_API_KEY",
}


def each_agent(*quick):
    """Parametrises a test: these agents in the normal suite, the others in `make soak`."""
    params = [n if n in quick else pytest.param(n, marks=pytest.mark.soak) for n in AGENTS]
    return pytest.mark.parametrize("agent", params)


MODELS = {
    "claude": "claude-haiku-4-5",
    "codex": "gpt-6-luna",
    "gemini": "gemini-2.5-flash",
    "goose": "gpt-4o",
    "opencode": "openai/gpt-5.1",
}
LOGIN_HOSTS = {
    "claude": {"api.anthropic.com"},
    "codex": {"api.openai.com"},
    "gemini": {"generativelanguage.googleapis.com"},
    "goose": {"api.openai.com"},
    "opencode": {"api.openai.com"},
}
TASK = (
    Turn("I write it.", (Write("hello.txt", "hello\n"),)),
    Turn(acts=(Shell("env; cat hello.txt"),)),
    Turn("Written."),
    Turn("Second answer."),
)
ENDED_S = 240.0


@functools.cache
def find_agents() -> Path:
    """Where their programs are; without them a skip on a laptop, a failure in CI."""
    found = subprocess.run(
        ["sh", "tools/setup", "agents"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    place = Path(found.stdout.strip()) / "bin"
    if not all((place / name).exists() for name in AGENTS):
        reason = f"needs the agents that `tools/setup dev` installs in `{place}`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return place


@pytest.fixture
def owner(person):
    """Has all agents, and no login yet."""
    person.env["PATH"] = f"{find_agents()}:{person.env['PATH']}"
    person.wants_daemon()
    return person


def use_model(owner, server, **tables):
    """The owner's agents ask this server instead of their vendors."""
    lines = [f'[agents.{name}]\nupstream = "{server.url}"' for name in AGENTS]
    lines += [f"[{key}]\n{text}" for key, text in tables.items()]
    path = Path(owner.env["XDG_CONFIG_HOME"]) / "atoll" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def model(owner):
    with ModelServer(turns(*TASK), keys=[KEY]) as server:
        use_model(owner, server)
        yield server
        assert server.violations == []


def spawn(owner, agent, prompt, *options):
    owner.atoll("spawn", agent, prompt, *options, "-q", env={VARIABLES[agent]: KEY})


def tell(owner, agent, name, message):
    owner.atoll("tell", name, message, "-q", env={VARIABLES[agent]: KEY})


def statuses(owner):
    return {found["capsule"]: found for found in owner.answer("agents")}


def await_state(owner, wait_for, *names, state="finished"):
    """Each of these agents in this state; shows what happened to them otherwise."""
    ends = {"finished", "failed", "lost", "over-budget", state}

    def found():
        now = statuses(owner)
        return all(now[name]["state"] in ends for name in names) and now

    now = wait_for(found, timeout_s=ENDED_S, what="the end of the agents")
    for name in names:
        shown = "" if now[name]["state"] == state else owner.atoll("logs", name).stdout[-3000:]
        assert now[name]["state"] == state, f"{now[name]}\n{shown}"
    return now


COPIES = {
    "claude": (".claude/CLAUDE.md", ".claude/skills/brief/SKILL.md"),
    "codex": (".codex/AGENTS.md", ".codex/skills/brief/SKILL.md"),
    "gemini": (".gemini/GEMINI.md", ".gemini/commands/brief.toml"),
    "goose": (".config/goose/.goosehints",),
    "opencode": (".config/opencode/AGENTS.md",),
}
"""Files of the owner that a capsule gets read-only."""
REWRITTEN = {
    "claude": {".claude.json": '{"theme": "dark"}', ".claude/settings.json": "{}"},
    "codex": {".codex/config.toml": 'personality = "pragmatic"\n'},
    "gemini": {".gemini/settings.json": '{"ui": {"hideTips": true}}'},
    "goose": {},
    "opencode": {".config/opencode/opencode.json": "{}"},
}
"""Their settings, which the programs write themselves."""
SKILL = "---\nname: brief\ndescription: Be brief.\n---\nBe brief.\n"
COMMAND = 'description = "Be brief."\nprompt = "Be brief."\n'


def write_settings(owner):
    """The memory, skills and settings of an owner who has used all agents."""
    found = {path: text for files in REWRITTEN.values() for path, text in files.items()}
    kinds = {".toml": COMMAND, "SKILL.md": SKILL}
    for path in (path for paths in COPIES.values() for path in paths):
        found[path] = next((text for end, text in kinds.items() if path.endswith(end)), "Brief.\n")
    for path, text in found.items():
        place = Path(owner.env["HOME"], path)
        if path.startswith(".config/"):
            place = Path(owner.env["XDG_CONFIG_HOME"], path.removeprefix(".config/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def await_failure(owner, wait_for, name):
    """The agent has failed, or is stopped while it waits for a person: some repeat for ever."""
    states = {"failed", "waiting"}

    def found():
        now = statuses(owner)
        return now[name]["state"] in {*states, "finished", "lost"} and now

    now = wait_for(found, timeout_s=ENDED_S, what="the end of the agent")
    assert now[name]["state"] in states, f"{now[name]}\n{owner.atoll('logs', name).stdout[-3000:]}"
    if now[name]["state"] == "waiting":
        owner.atoll("stop", name)
        await_state(owner, wait_for, name, state="failed")
    return now


def test_five_agents_at_once_then_the_next_message(owner, model, wait_for):
    write_settings(owner)
    for name in AGENTS:
        spawn(owner, name, f"Write hello.txt ({name})", "--name", name)
    now = await_state(owner, wait_for, *AGENTS)
    for name in AGENTS:
        assert owner.git("show", f"atoll/{name}:hello.txt") == "hello\n"
        # Three replies of 110 tokens each, and side requests such as titles.
        assert now[name]["tokens"] >= 330, now[name]
        attempts = [json.loads(line)["data"] for line in
                    owner.atoll("network", name, "--json").stdout.splitlines()]  # fmt: skip
        reached = {a["place"] for a in attempts if a["allowed"] and not a["failed"]}
        assert reached == LOGIN_HOSTS[name]
        # What the agents' commands printed: none of them could see the real key.
        assert KEY not in owner.atoll("logs", name).stdout

        for mode, paths in (("400", COPIES[name]), ("600", REWRITTEN[name])):
            for path in paths:
                assert owner.sh(name, f"cd; stat -c %a {path}") == f"{mode}\n", path

    for name in AGENTS:
        tell(owner, name, name, "And the second message")
    now = await_state(owner, wait_for, *AGENTS)
    for name in AGENTS:
        assert now[name]["turns"] == 2
        # The model saw the whole conversation: it is at the reply after the third.
        assert "Second answer." in owner.atoll("watch", name, "--no-follow").stdout, name


def test_agents_race_and_the_winner_is_promoted(owner, model):
    keys = {VARIABLES[name]: KEY for name in ("claude", "codex")}
    done = owner.atoll(
        "race", "Write hello.txt", "--agents", "claude:2,codex", "--name", "r", "--check",
        "test -e hello.txt", "--promote", "--json", env=keys,
    )  # fmt: skip
    race = json.loads(done.stdout)["data"]
    assert (race["state"], race["good"]) == ("finished", True), race
    found = {one["name"]: one for one in race["candidates"]}
    assert set(found) == {"r-claude-1", "r-claude-2", "r-codex"}
    for one in found.values():
        assert one["state"] == "done", one
        assert one["tokens"] >= 330
        assert [check["status"] for check in one["checks"]] == ["passed"]
        assert (one["changed_files"], one["added_lines"]) == (1, 1)
    # All have the same tree, so that the first one is picked.
    assert len({one["tree"] for one in found.values()}) == 1
    assert race["promotion"]["good"], race["promotion"]
    assert race["promotion"]["winner"] == race["winner"] == "r-claude-1"
    assert owner.git("show", "HEAD:hello.txt") == "hello\n"
    assert owner.git("rev-parse", "HEAD^{tree}").strip() == found["r-codex"]["tree"]
    shown = owner.atoll("compare", "r").stdout
    assert KEY not in shown
    assert "r-codex" in shown


@pytest.mark.parametrize("agent", ["claude", pytest.param("codex", marks=pytest.mark.soak)])
def test_conversation_travels_with_rollback_and_fork(owner, model, wait_for, agent):
    spawn(owner, agent, "Write hello.txt", "--name", "x")
    await_state(owner, wait_for, "x")
    owner.atoll("snapshot", "x", "-m", "after the first turn")
    tell(owner, agent, "x", "forget me")
    await_state(owner, wait_for, "x")
    owner.atoll("rollback", "x", "1")
    owner.atoll("fork", "x", "y", "-q")
    for name in ("x", "y"):
        tell(owner, agent, name, f"go on in {name}")
    await_state(owner, wait_for, "x", "y")
    for name in ("x", "y"):
        prompts = [request.conversation.prompts for request in model.model_requests]
        told = [each for each in prompts if any(f"go on in {name}" in text for text in each)]
        assert told, name
        text = "\n".join(told[-1])
        assert "Write hello.txt" in text
        assert "forget me" not in text


def in_any_colour(text):
    """A pattern for what a screen shows, which may change the colour between two letters."""
    return r"(?:\x1b\[[0-9;?]*[A-Za-z])*".join(text)


@each_agent("claude")
def test_its_own_screen(owner, model, wait_for, agent):
    words = ("spawn", agent, "Write it", "-i", "--name", "x", "--model", MODELS[agent])
    argv = (sys.executable, "-m", "atoll", *words)
    env = {**owner.env, VARIABLES[agent]: KEY}
    screen = Terminal(argv, owner.repo, env=env, become=owner.preparation(owner.repo))
    try:
        screen.expect(in_any_colour("Written"), timeout_s=ENDED_S)
        screen.type("\x1d")
        screen.expect("detached from", timeout_s=60)
    finally:
        screen.close()
    await_state(owner, wait_for, "x", state="waiting")
    tell(owner, agent, "x", "-- next\nwith two lines")

    def find_answered():
        """The request that has both messages, each whole."""
        wanted = ("Write it", "-- next\nwith two lines")
        return next(
            (request for request in model.model_requests
             if request.status == 200 and all(
                 any(text in prompt for prompt in request.conversation.prompts) for text in wanted
             )),
            None,
        )  # fmt: skip

    told = wait_for(find_answered, timeout_s=ENDED_S, what="a request with what was typed")
    assert told.model == MODELS[agent].rpartition("/")[2]
    if agent in SESSION_FILES:
        wait_for(
            lambda: "Second answer." in owner.atoll("watch", "x", "--no-follow").stdout,
            timeout_s=ENDED_S, what="its answer",
        )  # fmt: skip
    await_state(owner, wait_for, "x", state="waiting")
    owner.atoll("stop", "x")
    await_state(owner, wait_for, "x")
    assert owner.git("show", "atoll/x:hello.txt") == "hello\n"


@each_agent("claude")
def test_conversation_continues_on_its_own_screen(owner, model, wait_for, agent):
    spawn(owner, agent, "Write hello.txt", "--name", "x")
    await_state(owner, wait_for, "x")
    argv = (sys.executable, "-m", "atoll", "tell", "x", "-i", "And now here")
    env = {**owner.env, VARIABLES[agent]: KEY}
    screen = Terminal(argv, owner.repo, env=env, become=owner.preparation(owner.repo))
    try:
        # The model is at the reply after the whole first turn.
        screen.expect(in_any_colour("Second"), timeout_s=ENDED_S)
        screen.type("\x1d")
        screen.expect("detached from", timeout_s=60)
    finally:
        screen.close()
    await_state(owner, wait_for, "x", state="waiting")
    owner.atoll("stop", "x")
    await_state(owner, wait_for, "x")


@pytest.mark.parametrize(
    "agents",
    [("codex", "gemini"), pytest.param(AGENTS, marks=pytest.mark.soak)],
    ids=["two", "all"],
)
def test_messages_are_typed_into_their_screens(owner, model, wait_for, agents):
    """Each program treats Enter after a paste in its own way."""

    def has_asked(text):
        found = [request.conversation.prompts for request in model.model_requests]
        return any(text in prompt for prompts in found for prompt in prompts)

    for name in agents:
        spawn(owner, name, f"the first for {name}", "-i", "--name", name)

    def have_answered():
        now = statuses(owner).values()
        return all(one["state"] == "waiting" and one["tokens"] >= 330 for one in now)

    wait_for(have_answered, timeout_s=ENDED_S, what="the answers to the first messages")
    for name in agents:
        message = f"the second\nfor {name}"
        tell(owner, name, name, message)
        wait_for(functools.partial(has_asked, message), timeout_s=ENDED_S, what=message)


def jwt(**claims):
    parts = [{"alg": "RS256", "typ": "JWT"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts]
    return b".".join([*encoded, b"c2lnbmF0dXJl"]).decode()


def logins(now):
    """The files of subscription logins, by agent: with the access token of each."""
    auth = {"https://api.openai.com/auth": {"chatgpt_account_id": "acc-1",
                                            "chatgpt_plan_type": "plus"}}  # fmt: skip
    codex = jwt(**auth, email="me@example.org", exp=int(now) + 3600)
    claude, gemini = "sk-ant-oat01-REAL-claude-token", "ya29.REAL-gemini-token"
    return {
        "claude": (".claude/.credentials.json", claude, {"claudeAiOauth": {
            "accessToken": claude, "refreshToken": "sk-ant-ort01-REAL-refresh",
            "expiresAt": int((now + 3600) * 1000), "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max"}}),
        "codex": (".codex/auth.json", codex, {
            "auth_mode": "chatgpt", "OPENAI_API_KEY": None, "last_refresh": "2026-01-01T00:00:00Z",
            "tokens": {"id_token": codex, "access_token": codex, "refresh_token": "rt_REAL",
                       "account_id": "acc-1"}}),
        "gemini": (".gemini/oauth_creds.json", gemini, {
            "access_token": gemini, "refresh_token": "1//REAL-refresh", "token_type": "Bearer",
            "scope": "https://www.googleapis.com/auth/cloud-platform",
            "expiry_date": int((now + 3600) * 1000)}),
    }  # fmt: skip


def test_subscription_logins(owner, wait_for):
    found = logins(time.time())
    for path, _, content in found.values():
        place = Path(owner.env["HOME"], path)
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(content))
        place.chmod(0o600)
    (Path(owner.env["HOME"]) / ".gemini" / "settings.json").write_text(
        '{"security": {"auth": {"selectedType": "oauth-personal"}}}'
    )
    tokens = [token for _, token, _ in found.values()]
    with ModelServer(turns(*TASK), keys=tokens) as server:
        use_model(owner, server)
        for name in found:
            owner.atoll("spawn", name, "Write hello.txt", "--name", name, "-q")
        await_state(owner, wait_for, *found)
        for name, (path, token, _) in found.items():
            inside = owner.sh(name, f"cat ~/{path}; env")
            assert token not in inside
            assert "REAL" not in inside
            assert owner.git("show", f"atoll/{name}:hello.txt") == "hello\n"
        assert server.violations == []

        # A token that the owner's own program has renewed counts from the next request on.
        path, _, content = found["claude"]
        content["claudeAiOauth"]["accessToken"] = KEY
        Path(owner.env["HOME"], path).write_text(json.dumps(content))
        owner.atoll("tell", "claude", "with the new token", check=True)
        now = await_state(owner, wait_for, "claude", state="failed")
        assert "401" in now["claude"]["reason"]
        assert KEY not in owner.atoll("logs", "claude").stdout

        content["claudeAiOauth"] |= {"expiresAt": 1000, "refreshToken": ""}
        Path(owner.env["HOME"], path).write_text(json.dumps(content))
        refused = owner.atoll("tell", "claude", "with an expired one", check=False)
        assert refused.returncode == 4
        assert "hint: claude auth login" in refused.stderr


@each_agent("claude", "codex")
def test_quota_and_budget_hold_an_agent(owner, wait_for, agent):
    quota = Fault(status=429, retry_after_s=1)
    first = dataclasses.replace(TASK[0], faults=(quota,))
    with ModelServer(turns(first, *TASK[1:]), keys=[KEY]) as server:
        use_model(owner, server)
        spawn(owner, agent, "Write it", "--name", "x", "--budget", "turns=2")
        now = await_state(owner, wait_for, "x", state="over-budget")
        assert "2 of 2 turns" in now["x"]["reason"]
        owner.atoll("tell", "x", "--budget", "turns=+5", "-q")
        await_state(owner, wait_for, "x")
        # The agent noticed neither: its model was slow, that is all.
        assert not re.search(r"api_retry|\b429\b", owner.atoll("logs", "x").stdout)
        statuses = [request.status for request in server.model_requests]
        assert statuses.count(429) == 1
        assert set(statuses) == {200, 429}
        assert owner.git("show", "atoll/x:hello.txt") == "hello\n"
        assert server.violations == []


@each_agent("gemini", "goose")
def test_an_exit_code_is_no_verdict(owner, wait_for, agent):
    """goose exits with 0 after a stream that was cut, and when its key is refused; claude repeats
    for minutes.
    """
    script = turns(Turn("I begin.", (Write("half.txt", "half\n"),)),
                   Turn("never", faults=(Fault(kind="cut"),) * 50))  # fmt: skip
    with ModelServer(script, keys=[KEY]) as server:
        use_model(owner, server)
        spawn(owner, agent, "- write it", "--name", "cut")
        now = await_failure(owner, wait_for, "cut")
        assert now["cut"]["reason"]
        # What it did is kept all the same.
        assert owner.git("show", "atoll/cut:half.txt") == "half\n"
        wrong = {VARIABLES[agent]: "sk-real-but-of-somebody-else-000000"}
        owner.atoll("spawn", agent, "Write it", "--name", "refused", "-q", env=wrong)
        now = await_failure(owner, wait_for, "refused")
        assert "401" in now["refused"]["reason"]
        assert server.violations
