"""Agents from `spawn` to their verdict, with scripts in place of models: offline and the same
every time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import atoll
from atoll.engine.agent import observation, terminal_input
from atoll.keeper.status import load_status
from atoll.model.agent import AgentEventKind, AgentSpec, AgentState, AgentTask
from atoll.model.errors import IsolationError, PrerequisiteError, SpecError, StateError
from persons import as_user
from terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project
    from persons import Person

WORKER = """\
#!/bin/sh
echo '{"type": "say", "text": "I look at it"}'
echo '{"type": "tool", "tool": "shell", "text": "echo >> work.txt"}'
printf 'turn %s: %s\\n' "$ATOLL_TURN" "$1" >> work.txt
cat work.txt >> "$HOME/memory"
echo '{"type": "usage", "model": "scripted", "input_tokens": 90, "output_tokens": 10}'
echo '{"type": "done"}'
"""
ASKER = """\
printf 'ready> '
while read -r line; do printf 'heard %s\\nready> ' "$line"; echo "$line" >> heard.txt; done
"""
ENDED_S = 60.0


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """`script("echo hello")`: the name of a scripted agent."""

    def make(text: str, name: str = "agent") -> str:
        (tmp_path / name).write_text(text)
        return f"script:{tmp_path / name}"

    return make


def spawn(project: Project, agent: str, prompt: str | bytes = "do it", **options: Any) -> Capsule:
    return project.spawn(AgentSpec(agent=agent, prompt=prompt, **options))[0]


def ended(capsule: Capsule) -> tuple[AgentState, str]:
    status = capsule.agent.wait(timeout_s=ENDED_S)
    return status.state, status.reason


def test_from_a_prompt_to_a_branch(atoll, repo, script, git, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    agent = script(WORKER)
    done = atoll("spawn", agent, "Fix the auth, please", "--check", "test -s work.txt", cwd=repo)
    assert done.stdout == "fix-auth\n"
    shown = atoll("watch", "fix-auth", cwd=repo)
    assert shown.stdout.splitlines() == [
        "> Fix the auth, please",
        "I look at it",
        "* shell echo >> work.txt",
        "= the agent reports its end",
    ]
    assert "fix-auth: finished: 1 check passed" in shown.stderr
    [status] = json.loads(atoll("agents", "--json", cwd=repo).stdout)["data"]
    assert (status["state"], status["turns"], status["tokens"]) == ("finished", 1, 100)
    assert status["changed_files"] == 1
    log = git("log", "-1", "--format=%B", "atoll/fix-auth", cwd=repo)
    assert log.strip() == "Fix the auth, please\n\nAtoll-Agent: script"
    tree = git("rev-parse", "atoll/fix-auth^{tree}", cwd=repo).strip()
    [turn] = json.loads(atoll("transcript", "fix-auth", "--json", cwd=repo).stdout)["data"]["turns"]
    assert turn["verdict"]["tree"] == tree
    page = atoll("transcript", "fix-auth", "--html", cwd=repo).stdout
    assert "Fix the auth, please" in page
    assert "echo &gt;&gt; work.txt" in page
    shown = json.loads(atoll("show", "fix-auth", "--json", cwd=repo).stdout)["data"]
    assert shown["parts"]["agent"]["agent"] == "script"
    atoll("tell", "fix-auth", "also the docs", cwd=repo)
    atoll("watch", "fix-auth", cwd=repo)
    assert "turn 2: also the docs" in git("show", "atoll/fix-auth:work.txt", cwd=repo)
    atoll("rm", "fix-auth", "--force", cwd=repo)


def test_conversation_is_that_of_the_moment(project: Project, script: Callable[[str], str]) -> None:
    x = spawn(project, script(WORKER), "one")
    ended(x)
    point = x.snapshot("after one")
    x.agent.tell("two")
    ended(x)
    x.rollback(point)
    status = x.agent.status()
    assert (status.state, status.turns) == (AgentState.FINISHED, 1)
    told = x.agent.tell("another two")
    assert told.turn is not None
    assert told.turn.number == 3
    ended(x)
    memory = x.run(["sh", "-c", 'cat "$HOME/memory"']).stdout.decode()
    assert memory == "turn 1: one\nturn 1: one\nturn 3: another two\n"

    fork = project.fork(x, "y")
    x.remove(force=True)
    assert [e.text for e in fork.agent.events() if e.kind is AgentEventKind.PROMPT] == [
        "one",
        "another two",
    ]
    assert sum(e.kind is AgentEventKind.END for e in fork.agent.events()) == 2
    fork.agent.tell("in the fork")
    assert ended(fork)[0] is AgentState.FINISHED
    assert fork.run(["cat", "work.txt"]).stdout.endswith(b"turn 4: in the fork\n")


def test_snapshot_before_the_first_turn(project: Project, script: Callable[[str], str]) -> None:
    x = project.new("x")
    before = x.snapshot("empty")
    project.spawn(AgentSpec(agent=script(WORKER), prompt="one", inside="x"))
    ended(x)
    x.rollback(before)
    assert x.agent.status().state is AgentState.IDLE
    assert list(x.agent.events()) == []


def test_several_agents_with_one_task(project: Project, script: Callable[[str], str]) -> None:
    made = project.spawn(AgentSpec(agent=script(WORKER), prompt="add tests", number=3))
    assert [one.name for one in made] == ["add-tests-1", "add-tests-2", "add-tests-3"]
    assert {ended(one) for one in made} == {(AgentState.FINISHED, "")}
    assert [status.capsule for status in project.agents()] == [one.name for one in made]
    [fourth] = project.spawn(AgentSpec(agent=script(WORKER), prompt="add tests"))
    assert fourth.name == "add-tests"
    ended(fourth)


OFF_BRANCH = "the workspace is not on its branch `atoll/off-branch`"
CASES: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
    ("checks", WORKER, {"checks": ("true", "exit 3")}, "failed",
     "1 of 2 checks failed: `exit 3` (3)"),
    ("code", "exit 7", {}, "failed", "it ended with code 7"),
    ("said", "echo broken >&2; exit 1", {}, "failed", "it ended with code 1: broken"),
    ("refused", 'echo \'{"type":"done","is_error":true,"text":"no\\u001b[2J"}\'', {}, "failed",
     "it reported: no\\x1b[2J"),
    ("off-branch", "git switch -q -c mine; echo x > f", {}, "failed",
     f"its work could not be recorded: `off-branch`: {OFF_BRANCH}"),
    ("time", "sleep 600", {"timeout_s": 0.5}, "failed", "it was ended by its time limit"),
    ("budget", "sleep 600", {"budget": ("time=1s",)}, "over-budget", "1s of 1s"),
    ("daemon", "setsid sleep 600 & echo x > f", {}, "finished", ""),
    ("uncommitted", "echo x > f", {"commits": False}, "finished", ""),
)  # fmt: skip


def test_what_a_turn_comes_to(project: Project, script: Callable[..., str]) -> None:
    made = {
        name: spawn(project, script(text, name), name=name, **options)
        for name, text, options, _, _ in CASES
    }
    found = {name: ended(capsule) for name, capsule in made.items()}
    assert found == {name: (state, reason) for name, _, _, state, reason in CASES}
    assert [name for name, capsule in made.items() if capsule.living()] == []
    left = {name for name, capsule in made.items() if capsule.work().untracked}
    assert left == {"off-branch", "uncommitted"}


def test_flood_of_output_is_bounded(project: Project, script: Callable[[str], str]) -> None:
    line = json.dumps({"type": "say", "text": "flood " * 40})
    x = spawn(project, script(f"yes '{line}' | head -c 30000000; echo; echo x > f"))
    assert ended(x)[0] is AgentState.FINISHED
    status = x.agent.status()
    assert len(status.line) < 4000


def test_command_as_an_agent(project: Project) -> None:
    argv = ("sh", "-c", 'printf %s "$1" > said.txt', "sh", "{prompt}!")
    x = spawn(project, "command", "it's {model} $HOME", command=argv)
    assert ended(x)[0] is AgentState.FINISHED
    assert x.run(["cat", "said.txt"]).stdout == b"it's {model} $HOME!"
    x.agent.tell("more")
    ended(x)
    assert x.run(["cat", "said.txt"]).stdout == b"more!"


def test_owner_without_a_git_identity(
    project: Project, script: Callable[[str], str], git: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "gitconfig").write_text("")
    x = spawn(project, script(WORKER), "one")
    assert ended(x)[0] is AgentState.FINISHED
    author = git("log", "-1", "--format=%an <%ae>", f"atoll/{x.name}", cwd=project.root)
    assert author == "script <agent@localhost>\n"


def test_agent_that_cannot_continue(project: Project, tmp_path: Path) -> None:
    """Its next message would silently begin another conversation."""
    settings = tmp_path / "config" / "atoll" / "config.toml"
    settings.parent.mkdir(parents=True)
    lines = '[agents.once]\nprogram = "echo"\nneeds_login = false\n[agents.once.commands]\n'
    settings.write_text(lines + 'headless = ["echo", "{prompt}"]\n')
    x = spawn(project, "once", "one")
    assert ended(x)[0] is AgentState.FINISHED
    with pytest.raises(StateError, match="cannot continue a conversation"):
        x.agent.tell("two")
    spawn(project, "once", "a new one", inside=x.name)
    assert ended(x)[0] is AgentState.FINISHED


def test_any_prompt_arrives(project: Project, script: Callable[[str], str]) -> None:
    text = 'test -z "$ATOLL_PROMPT_FILE" && printf %s "$1" > got || cp "$ATOLL_PROMPT_FILE" got'
    prompts = {"dash": "-rf --help", "lines": "one\ntwo\n", "long": "x" * 1_000_000}
    for name, prompt in prompts.items():
        x = spawn(project, script(text), prompt, name=name)
        assert ended(x)[0] is AgentState.FINISHED
        assert x.run(["cat", "got"]).stdout.decode() == prompt
        assert x.agent.require().task.prompt == prompt


def test_agent_is_stopped_and_told_again(project: Project, script: Callable[[str], str]) -> None:
    x = spawn(project, script("echo begun; test -e f || { touch f; sleep 600; }"))
    first = next(e for e in x.agent.events(follow=True) if e.kind is AgentEventKind.MESSAGE)
    assert first.text == "begun"
    with pytest.raises(StateError, match="still at work"):
        x.agent.tell("hurry")
    with pytest.raises(StateError, match="still at work"):
        project.spawn(AgentSpec(agent="command", prompt="p", command=("true",), inside=x.name))
    x.pause()
    assert x.agent.status()[3:5] == (AgentState.WAITING, "it is paused")
    with pytest.raises(StateError, match="is paused"):
        x.agent.tell("hurry")
    x.resume()
    x.stop()
    assert ended(x) == (AgentState.FAILED, "it was stopped")
    x.agent.tell("go on")
    assert ended(x)[0] is AgentState.FINISHED


def test_budget_of_turns(project: Project, script: Callable[[str], str]) -> None:
    x = spawn(project, script(WORKER), budget=("turns=1",))
    assert ended(x)[0] is AgentState.FINISHED
    with pytest.raises(StateError, match="used up: 1 of 1 turn"):
        x.agent.tell("more")
    assert x.agent.set_budget("turns=+1").turns == 2
    x.agent.tell("more")
    assert ended(x)[0] is AgentState.FINISHED


def test_killed_watcher_is_replaced_by_the_next_look(
    project: Project, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(observation.turns, "watch", lambda *_: None)
        x = spawn(project, script(WORKER))
        x.wait(x.require_run())
        assert x.agent.status().state is AgentState.WORKING
        assert x.agent.turns()[0].verdict is None
    monkeypatch.setattr(observation, "_LATE_S", 0.0)
    assert ended(x)[0] is AgentState.FINISHED


def test_killed_keeper_is_a_lost_agent(project: Project, script: Callable[[str], str]) -> None:
    x = spawn(project, script("echo begun; echo x > f; sleep 600"))
    next(e for e in x.agent.events(follow=True) if e.kind is AgentEventKind.MESSAGE)
    status = load_status(x.require_run().directory)
    assert status is not None
    assert status.keeper is not None
    os.kill(status.keeper[0], signal.SIGKILL)
    assert ended(x) == (AgentState.LOST, "its process disappeared")
    # What it left is on its branch all the same.
    assert x.work().untracked == ()


def test_message_is_typed_into_a_screen(project: Project, script: Callable[[str], str]) -> None:
    x = spawn(project, script(ASKER), "", name="chat", is_interactive=True)
    run = x.require_run()
    assert x.agent.wait(timeout_s=ENDED_S).state is AgentState.WAITING
    assert x.agent.tell("hello there").is_typed
    with pytest.raises(SpecError, match="control characters"):
        x.agent.tell("\x1b[2J")
    heard = (e.text for e in x.agent.events(follow=True))
    assert next(text for text in heard if text.startswith("heard")) == "heard hello there"
    assert [e.text for e in x.agent.events() if e.kind is AgentEventKind.PROMPT] == ["hello there"]
    assert x.agent.status().turns == 2
    assert not terminal_input._takes_pastes(run)
    x.stop()
    ended(x)
    assert x.work().untracked == ()


@pytest.mark.parametrize("words", [("watch", "chat"), ("agents", "-w")])
def test_ctrl_c_ends_a_look_silently(
    project: Project, script: Callable[[str], str], words: tuple[str, ...]
) -> None:
    x = spawn(project, script(ASKER), "", name="chat", is_interactive=True)
    assert x.agent.wait(timeout_s=ENDED_S).state is AgentState.WAITING
    terminal = Terminal([sys.executable, "-m", "atoll", *words], project.root)
    try:
        terminal.expect("waiting")
        terminal.type("\x03")
        assert terminal.process.wait(timeout=30) == 130
        terminal.expect(r"\^C")
        with suppress(OSError):
            terminal.seen += os.read(terminal.master, 65536).decode()
        assert "error" not in terminal.seen
    finally:
        terminal.close()


def test_last_turn_alone(
    atoll: Callable[..., Any], project: Project, script: Callable[[str], str]
) -> None:
    x = spawn(project, script(WORKER), "one")
    ended(x)
    x.agent.tell("two")
    ended(x)
    shown = atoll("watch", "one", "--last", cwd=project.root).stdout
    assert "> two" in shown
    assert "> one" not in shown


PASTER = """\
#!/usr/bin/env python3
import os, termios, tty
tty.setraw(0)
os.write(1, b"\\x1b[?2004hready\\r\\n")
got = b""
while not got.endswith(b"\\x1b[201~"):
    got += os.read(0, 1)
# What has come by now counts as a part of the paste.
termios.tcflush(0, termios.TCIFLUSH)
os.write(1, b"shown\\r\\n")
assert os.read(0, 1) == b"\\r"
os.write(1, b"sent " + got[6:-6].replace(b"\\n", b"|") + b"\\r\\n")
"""


def test_enter_is_typed_after_what_is_pasted(
    project: Project, script: Callable[[str], str]
) -> None:
    x = spawn(project, script(PASTER), "", name="chat", is_interactive=True)
    screen = x.agent.events(follow=True)
    assert x.agent.wait(timeout_s=ENDED_S).state is AgentState.WAITING
    assert x.agent.tell("one\ntwo").is_typed
    assert "sent one|two" in [e.text for e in screen]
    assert ended(x)[0] is AgentState.FINISHED


def test_screen_in_this_terminal(project: Project, script: Callable[[str], str]) -> None:
    agent = script(ASKER)
    argv = [sys.executable, "-m", "atoll", "spawn", agent, "-i", "--name", "chat"]
    terminal = Terminal(argv, project.root)
    try:
        terminal.expect("ready> ")
        terminal.type("one\r")
        terminal.expect("heard one")
        terminal.type("\x1d")
        terminal.expect("detached from chat.1")
        assert terminal.process.wait(timeout=30) == 0
    finally:
        terminal.close()
    chat = project.capsule("chat")
    again = Terminal([sys.executable, "-m", "atoll", "attach", "chat"], project.root)
    try:
        again.expect("heard one")
        again.type("\x04")
        assert again.process.wait(timeout=30) == 0
    finally:
        again.close()
    assert ended(chat)[0] is AgentState.FINISHED


@pytest.mark.parametrize("step", ["new.leased", "run.leased"])
def test_interrupted_spawn_leaves_nothing(
    project: Project, script: Callable[[str], str], step: str
) -> None:
    def interrupt(reached: str, subject: str) -> None:
        if reached == step:
            project.session.listen = lambda *_: None
            raise KeyboardInterrupt

    project.session.listen = interrupt
    with pytest.raises(KeyboardInterrupt):
        spawn(project, script(WORKER), number=2)
    assert project.capsules() == []
    assert project.agents() == []


def test_killed_spawn_is_a_lost_agent(project: Project, script: Callable[[str], str]) -> None:
    x = project.new("x")
    project.session.store.save_agent(x.record.id, "script", AgentTask("do it"))
    assert x.agent.status()[3:5] == (AgentState.LOST, "the command that started it was killed")


def test_bad_requests_make_nothing(
    project: Project, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = script(WORKER)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    cases: list[tuple[type[Exception], str, AgentSpec]] = [
        (SpecError, "is empty", AgentSpec(agent=agent)),
        (SpecError, "no file", AgentSpec(agent="script:/nowhere", prompt="x")),
        (SpecError, "needs a file", AgentSpec(agent="script:", prompt="x")),
        (SpecError, "did you mean `claude`", AgentSpec(agent="cluade", prompt="x")),
        (SpecError, "needs a command line", AgentSpec(agent="command", prompt="x")),
        (SpecError, "one prompt", AgentSpec(agent="claude", prompt="x", command=("y",))),
        (PrerequisiteError, "not installed", AgentSpec(agent="claude", prompt="x")),
        (PrerequisiteError, "no agent is installed", AgentSpec(prompt="x")),
        (SpecError, "no option for a model", AgentSpec(agent=agent, prompt="x", model="m")),
        (SpecError, "shell command", AgentSpec(agent=agent, prompt="x", checks=(" ",))),
        (SpecError, "not a budget", AgentSpec(agent=agent, prompt="x", budget=("much",))),
        (SpecError, "`--in` uses one", AgentSpec(agent=agent, prompt="x", inside="a", number=2)),
        (StateError, "no capsule", AgentSpec(agent=agent, prompt="x", inside="nope")),
    ]
    for kind, said, spec in cases:
        with pytest.raises(kind, match=said):
            project.spawn(spec)
    with pytest.raises(IsolationError, match="agents need level `sandbox`"):
        project.spawn(AgentSpec(agent=agent, prompt="x"), atoll.CapsuleSpec(level="clone"))
    assert project.capsules() == []


def test_mistaken_command_lines(
    atoll: Callable[..., Any], project: Project, script: Callable[[str], str]
) -> None:
    agent = script(WORKER)
    for words, said in (
        (("spawn", agent, "x", "--model", ""), "`--model` is empty"),
        (("spawn", agent, "x", "--effort", " "), "`--effort` is empty"),
        (("transcript", "x", "--html", "--json"), "`--html` and `--json` are both given"),
    ):
        done = atoll(*words, cwd=project.root, check=False)
        assert (done.returncode, said in done.stdout + done.stderr) == (2, True), done
    assert project.capsules() == []
    done = atoll("spawn", "command", "do it", "--", "true", cwd=project.root)
    assert "warning: the prompt is not used" in done.stderr
    done = atoll("spawn", "command", "do it", "--", "nosuchprogram", "{prompt}", cwd=project.root)
    assert "warning" not in done.stderr
    state, reason = ended(project.capsule("do-it-2"))
    assert state is AgentState.FAILED
    assert "nosuchprogram" in reason


def test_owner_is_notified(
    project: Project, script: Callable[[str], str], tmp_path: Path, wait_for: Callable[..., Any],
    atoll_home: Path,
) -> None:  # fmt: skip
    config = tmp_path / "config" / "atoll" / "config.toml"
    config.parent.mkdir(parents=True)
    told = tmp_path / "told.json"
    config.write_text(
        f'[notify]\ncommand = "cat >> {told}"\nwebhook = "http://127.0.0.1:9/none"\n'
        'events = ["agent.failed"]\n'
    )
    x = spawn(project, script("exit 3"))
    ended(x)
    wait_for(lambda: told.exists() and told.read_text().endswith("\n"), what="a notification")
    [event] = map(json.loads, told.read_text().splitlines())
    assert (event["event"], event["capsule"]) == ("agent.failed", "do-it")
    assert event["reason"] == "it ended with code 3"
    # Nothing listens there.
    wait_for((atoll_home / "notify.log").exists, what="the failure of the webhook")
    assert "webhook: " in (atoll_home / "notify.log").read_text()


def test_repository_by_url(atoll, repo, script, git, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    canary = tmp_path / "canary"
    bare = tmp_path / "shop.git"
    git("clone", "--quiet", "--bare", repo, bare, cwd=tmp_path)
    hook = bare / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{canary}'\n")
    hook.chmod(0o755)
    done = atoll(
        "spawn", script(WORKER), "look", "--repo", f"file://{bare}", cwd=tmp_path, timeout_s=120
    )
    [clone] = (tmp_path / "atoll-home" / "repositories").iterdir()
    assert f"--project {clone}" in done.stderr
    atoll("watch", "look", "--project", clone, cwd=tmp_path)
    assert git("log", "-1", "--format=%s", "atoll/look", cwd=clone) == "look\n"
    again = atoll(
        "spawn", script(WORKER), "look", "--repo", f"file://{bare}", cwd=tmp_path, timeout_s=120
    )
    assert again.stdout == "look-2\n"
    atoll("watch", "look-2", "--project", clone, cwd=tmp_path)
    assert not canary.exists()
    for url in ("ext::sh -c true", "http://example.org/x", "-u://x"):
        refused = atoll("spawn", script(WORKER), "x", f"--repo={url}", cwd=tmp_path, check=False)
        assert refused.returncode in (2, 4), refused.stderr
    atoll("rm", "look", "look-2", "--force", "--project", clone, cwd=tmp_path)


@as_user
def test_an_ordinary_user_spawns(person: Person) -> None:
    person.write({"agent.sh": WORKER})
    person.atoll("spawn", "script:agent.sh", "fix it", "--check", "test -s work.txt")
    done = person.atoll("watch", "fix-it")
    assert done.stderr.endswith("fix-it: finished: 1 check passed\n")
    assert person.git("log", "-1", "--format=%s", "atoll/fix-it") == "fix it\n"
    assert [one["state"] for one in person.answer("agents")] == ["finished"]
