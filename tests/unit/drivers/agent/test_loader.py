"""Adapter files, the user's tables over them, and the command lines that they describe."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers import registry
from atoll.drivers.agent import loader
from atoll.drivers.contracts import HomeFile, InsideLogin
from atoll.model import projectfile, request_rules
from atoll.model.adapter import (
    AdapterSpec,
    CommandLines,
    command_line,
    filled,
    has_option,
    place_inside,
    place_on_host,
)
from atoll.model.errors import PrerequisiteError, SpecError

BUILT_IN = registry.adapters({})
NO_LOGIN = InsideLogin({}, ())
EVERY_NAME = (
    "aider", "amp", "claude", "cline", "codex", "copilot", "gemini", "goose", "mini", "opencode",
    "openhands", "pi", "qwen",
)  # fmt: skip


def extra(text):
    return projectfile.parse_user_file(text.encode(), source="config.toml").agents


# What ships.


def test_every_agent_ships():
    assert tuple(BUILT_IN) == EVERY_NAME


@pytest.mark.parametrize("name", EVERY_NAME)
def test_built_in_adapter_is_complete(name):
    spec = BUILT_IN[name]
    assert spec.title
    assert spec.install
    assert spec.logins
    lines = spec.commands
    for words in (lines.headless, lines.headless_resume, lines.interactive):
        assert not words or spec.program in " ".join(words).split()
    assert lines.headless
    wanted = {"argument": "{prompt}", "file": "{prompt_file}", "stdin": ""}[lines.prompt_by]
    assert all(any(wanted in word for word in words) for words in (lines.headless,) if words)
    registry.event_format(spec.events)
    if spec.session.format:
        registry.event_format(spec.session.format)
        assert spec.session.transcript


WITHOUT_OPTION = {
    ("opencode", "interactive", "effort"),
    ("opencode", "interactive_resume", "effort"),
}
"""Command lines whose programs have no such option, although others of theirs do."""


@pytest.mark.parametrize("name", EVERY_NAME)
def test_built_in_command_lines_have_the_options_of_their_agent(name):
    lines = BUILT_IN[name].commands
    for kind in ("headless", "headless_resume", "interactive", "interactive_resume"):
        words = getattr(lines, kind)
        for option in ("model", "effort"):
            is_wanted = bool(words and getattr(lines, option))
            without = (name, kind, option) in WITHOUT_OPTION
            assert has_option(lines, words, option) == (is_wanted and not without), (kind, option)
        if kind.endswith("_resume") and words:
            assert getattr(lines, kind.removesuffix("_resume"))


@pytest.mark.parametrize("name", EVERY_NAME)
def test_built_in_logins_name_hosts_and_paths(name):
    for login in BUILT_IN[name].logins:
        assert login.cure
        for rule in (*login.allow, *login.deny):
            request_rules.parse_rule(rule)
        if login.kind == "key":
            assert login.variable
        else:
            assert login.file
            assert login.tokens
            assert place_inside(login.inside or login.file if login.inside is None else login.file)


@pytest.mark.parametrize("name", EVERY_NAME)
def test_files_are_what_their_names_say(name):
    spec, key = BUILT_IN[name], "sk-placeholder-0123456789abcdef"
    values = {"home": "/home/a b", "workspace": '/work/it\'s "quoted" \\ {key}'}
    for login in [None, *spec.logins]:
        written = () if login is None else login.files
        inside = InsideLogin({}, tuple(
            HomeFile(one.path, filled(one.content, {"key": key}).encode()) for one in written
        ), key)  # fmt: skip
        for file in registry.home_files(spec, inside, values):
            if file.path.endswith(".json"):
                json.loads(file.content)
            if file.path.endswith(".toml"):
                tomllib.loads(file.content.decode())


def test_amp_reaches_its_threads_and_no_telemetry():
    [login] = BUILT_IN["amp"].logins
    allow = [request_rules.parse_rule(rule) for rule in login.allow]
    deny = [request_rules.parse_rule(rule) for rule in login.deny]
    for method, path, expected in (
        ("POST", "/api/internal", True),
        ("POST", "/api/thread-actors", True),
        ("GET", "/actors/gateway/threadActor/websocket/", True),
        ("POST", "/api/telemetry", False),
        ("GET", "/settings", False),
    ):
        is_allowed = any(rule.matches(method, path) for rule in allow)
        assert is_allowed is expected
        assert not (is_allowed and any(rule.matches(method, path) for rule in deny))


def test_effort_is_documented_as_it_is():
    found = {name for name, spec in BUILT_IN.items() if spec.commands.effort}
    assert found == {"aider", "claude", "cline", "codex", "copilot", "opencode", "pi"}


def test_claude_trusts_a_workspace_with_any_name():
    workspace = '/work/it\'s "quoted" \\'
    found = registry.home_files(
        BUILT_IN["claude"], NO_LOGIN, {"workspace": workspace, "home": "/h"}
    )
    settings = json.loads(next(f.content for f in found if f.path == ".claude.json"))
    assert settings["projects"][workspace]["hasTrustDialogAccepted"] is True


def test_nothing_of_aider_is_committed(tmp_path):
    commands = BUILT_IN["aider"].commands
    for words in (
        commands.headless, commands.headless_resume, commands.interactive,
        commands.interactive_resume,
    ):  # fmt: skip
        assert "--no-gitignore" in words
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    [before] = commands.before
    subprocess.run(before, cwd=tmp_path, check=True)
    caches = list(tmp_path.glob(".aider.tags.cache.v*"))
    assert caches
    for cache in caches:
        (cache / "cache.db").write_text("")
    done = subprocess.run(
        ["git", "status", "--short"], cwd=tmp_path, check=True, capture_output=True
    )
    assert done.stdout == b""


# The user's tables.


def test_table_changes_keys_of_a_built_in_adapter():
    found = registry.adapters(extra(
        '[agents.claude]\nupstream = "http://127.0.0.1:8080"\nenv = { EXTRA = "1" }\n'
        'commands = { model = ["--with", "{model}"] }\n'
    ))["claude"]  # fmt: skip
    assert found.upstream == "http://127.0.0.1:8080"
    assert found.commands.model == ("--with", "{model}")
    assert found.commands.headless == BUILT_IN["claude"].commands.headless
    assert found.env == {**BUILT_IN["claude"].env, "EXTRA": "1"}
    assert found.logins == BUILT_IN["claude"].logins


def test_whole_adapter():
    found = registry.adapters(extra(
        '[agents.mine]\nprogram = "mine"\nevents = "script"\nneeds_login = false\n'
        'commands = { headless = ["mine", "--task={prompt}"] }\n'
    ))  # fmt: skip
    assert found["mine"].program == "mine"
    assert set(found) == {*EVERY_NAME, "mine"}


def test_incomplete_adapter_is_refused():
    with pytest.raises(
        SpecError,
        match=r"`\[agents.mine\]` in `config.toml` needs `program` and `commands.headless`",
    ):
        registry.adapters(extra("[agents.mine]\nneeds_login = false\n"))


@pytest.mark.parametrize(("table", "key"), [
    (
        '[agents.mine]\nprogram = "m"\ncommands = { headless = ["m"] }',
        "agents.mine.commands.headless",
    ),
    (
        '[agents.mine]\nprogram = "m"\ncommands = { headless = ["m"], prompt_by = "file" }',
        "agents.mine.commands.headless",
    ),
    ('[agents.goose]\ncommands = { prompt_by = "argument" }', "agents.goose.commands.headless"),
])  # fmt: skip
def test_agent_that_would_get_no_prompt(table, key):
    with pytest.raises(SpecError) as raised:
        registry.adapters(extra(table), source="/home/me/config.toml")
    assert f"`{key}` in `/home/me/config.toml` has no `{{prompt" in raised.value.message
    assert raised.value.hint


def test_agent_without_a_title_has_its_name():
    table = '[agents.mine]\nprogram = "sh"\ncommands = { headless = ["sh", "{prompt}"] }\n'
    assert registry.adapters(extra(table))["mine"].title == "mine"


def test_sound_agents_of_a_file_with_mistakes():
    text = '[agents.good]\nprogram = "g"\n[agents.bad]\nprogam = "b"\n[budget]\nmistake = 1\n'
    found, mistakes = projectfile.parse_user_agents(text.encode(), source="config.toml")
    assert list(found) == ["good"]
    assert [one.render() for one in mistakes] == [
        "config.toml:4: `agents.bad.progam`: unknown key; did you mean `program`?"
    ]


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('commands = { headless = ["x", "{promt}"] }', "agents.mine.commands.headless[1]",
         "`{promt}` stands for nothing; did you mean `{prompt}`?"),
        ('logins = [{ kind = "key", title = "t", cure = "c", hosts = ["a.b"] }]',
         "agents.mine.logins[0]", "needs `variable`"),
        ('colour = "red"', "agents.mine.colour", "unknown key"),
        ('progam = "x"', "agents.mine.progam", "unknown key"),
        ("commands = { headles = [] }", "agents.mine.commands.headles", "unknown key"),
        ('session = { status = "x/*.json" }', "agents.mine.session.status", "unknown key"),
        ('events = "clade"', "agents.mine.events", "must be one of"),
        ('env = { HOME = "/" }', "agents.mine.env.HOME", "is set by Atoll itself"),
        ('hosts = ["*.com"]', "agents.mine.hosts[0]", "top-level domain"),
        ('upstream = "ftp://x"', "agents.mine.upstream", "must be a URL"),
        ('upstream = "http://me:pw@x"', "agents.mine.upstream", "must be a URL"),
        ('files = [{ path = "../x", content = "" }]', "agents.mine.files[0].path", "below"),
        ('files = [{ path = "/etc/x", content = "" }]', "agents.mine.files[0].path", "below"),
        ('carry = [{ path = "/etc/shadow" }]', "agents.mine.carry[0].path", "must begin with"),
        ('carry = [{ path = "~/../x" }]', "agents.mine.carry[0].path", "must begin with"),
        ('logins = [{ kind = "key", title = "t", cure = "c", hosts = [] }]',
         "agents.mine.logins[0].hosts", ""),
        ('logins = [{ kind = "key", title = "t", cure = "c", hosts = ["a.b"], allow = ["x"] }]',
         "agents.mine.logins[0].allow[0]", "is not `METHOD /path*`"),
        ('commands = { headless = ["a\\u001b[0m"] }', "agents.mine.commands.headless[0]",
         "control characters"),
    ],
)  # fmt: skip
def test_mistakes_name_file_and_key(text, key, message):
    with pytest.raises(SpecError) as raised:
        extra(f"[agents.mine]\n{text}\n")
    (mistake,) = raised.value.mistakes
    assert mistake.source == "config.toml"
    assert mistake.key == key
    assert message in mistake.message
    assert mistake.line == 2


def test_agents_are_not_taken_from_a_project_file():
    with pytest.raises(SpecError, match="1 mistake"):
        projectfile.parse_project_file(b'[agents.claude]\nprogram = "x"\n', source="atoll.toml")


def test_unknown_format():
    with pytest.raises(PrerequisiteError, match="no driver `nonsense`"):
        registry.event_format("nonsense")


# Files of a home.


def test_later_files_win_and_json_is_merged():
    spec = AdapterSpec(files=({"path": "s.json", "content": '{"a": {"b": 1}}'},))
    inside = InsideLogin({}, (HomeFile("s.json", b'{"a": {"c": 3}}'), HomeFile("t", b"login")))
    carried = [HomeFile("s.json", b'{"a": {"b": 0, "d": 4}, "e": [1]}'), HomeFile("t", b"owner")]
    found = {file.path: file.content for file in registry.home_files(spec, inside, {}, carried)}
    assert json.loads(found["s.json"]) == {"a": {"b": 1, "c": 3, "d": 4}, "e": [1]}
    assert found["t"] == b"login"


@pytest.mark.parametrize("damaged", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_damaged_carried_json_is_replaced(damaged):
    spec = AdapterSpec(files=({"path": "s.json", "content": "{}"},))
    [found] = registry.home_files(spec, NO_LOGIN, {}, [HomeFile("s.json", damaged)])
    assert found.content == b"{}"


def test_only_copies_are_read_only():
    spec = AdapterSpec(files=({"path": "s.json", "content": "{}"}, {"path": "a", "content": ""}))
    inside = InsideLogin({}, (HomeFile("login.json", b"{}"),))
    carried = [
        HomeFile("s.json", b"{}", is_read_only=True),
        HomeFile("login.json", b"{}", is_read_only=True),
        HomeFile("CLAUDE.md", b"Be brief.", is_read_only=True),
        HomeFile("config.toml", b"", is_read_only=False),
    ]
    found = registry.home_files(spec, inside, {}, carried)
    assert [file.path for file in found if file.is_read_only] == ["CLAUDE.md"]


WRITABLE = {
    "codex": {".codex/config.toml"},
    "copilot": {".copilot/mcp-config.json"},
    "pi": {".pi/agent/settings.json"},
}
"""The settings that a program rewrites by itself, and no file of its adapter is merged with."""


@pytest.mark.parametrize("name", EVERY_NAME)
def test_settings_that_a_program_rewrites_are_writable(name):
    spec = BUILT_IN[name]
    carried = [(place_inside(one.path), one.writable) for one in spec.carry]
    assert {path for path, is_writable in carried if is_writable} == WRITABLE.get(name, set())
    own = {one.path for one in (*spec.files, *(f for login in spec.logins for f in login.files))}
    settings = [path for path, is_writable in carried if path.endswith((".json", ".toml"))
                and not is_writable]  # fmt: skip
    assert set(settings) <= own


# Command lines.

LINES = CommandLines(model=("-m", "{model}"), effort=("-e", "{effort}"))
WORDS = ("agent", "{model_options}", "{effort_options}", "--", "{prompt}")


def test_options_and_prompt():
    values = {"prompt": "fix {home}\n-x", "model": "m 1", "effort": "", "home": "/h"}
    assert command_line(LINES, WORDS, values) == ["agent", "-m", "m 1", "--", "fix {home}\n-x"]


def test_nothing_chosen():
    assert command_line(LINES, WORDS, {}) == ["agent"]
    assert command_line(LINES, ("agent", "--prompt={prompt}"), {"prompt": ""}) == ["agent"]
    assert command_line(LINES, ("agent", "{unknown}"), {}) == ["agent", "{unknown}"]


def test_option_counts_only_where_it_changes_the_command_line():
    assert has_option(LINES, WORDS, "model")
    assert not has_option(LINES, ("agent", "{effort_options}"), "model")
    assert not has_option(CommandLines(), WORDS, "model")
    assert has_option(CommandLines(), ("agent", "--model={model}"), "model")


@given(prompt=st.text(min_size=1))
def test_prompt_is_one_word_and_stays_as_it_is(prompt):
    values = {"prompt": prompt, "home": "/h", "key": "k", "workspace": "/w"}
    assert command_line(LINES, ("a", "--p={prompt}"), values) == ["a", f"--p={prompt}"]


def test_key_tail():
    assert filled("{key_tail}", {"key": "0123456789abcdefghijklmnop"}) == "6789abcdefghijklmnop"


def test_places():
    owner = {"HOME": "/home/me", "CODEX_HOME": "/data/codex"}
    moved = "${CODEX_HOME:-~/.codex}/auth.json"
    assert place_on_host("~/.x/y", owner) == "/home/me/.x/y"
    assert place_on_host(moved, owner) == "/data/codex/auth.json"
    assert place_on_host(moved, {"HOME": "/h"}) == "/h/.codex/auth.json"
    assert place_on_host(moved, {"HOME": "/h", "CODEX_HOME": "relative"}) == "/h/.codex/auth.json"
    assert place_on_host(moved, {}) is None
    assert place_inside(moved) == ".codex/auth.json"
    assert place_inside("~/.x/y") == ".x/y"


# Programs.


def test_program_is_never_one_of_the_project(tmp_path):
    spec, project, system = BUILT_IN["claude"], tmp_path / "project", tmp_path / "system"
    for place in (project, system):
        place.mkdir()
        (place / "claude").write_text("#!/bin/sh\necho '2.1.0 (Claude\x1b[31m Code)'\necho more\n")
        (place / "claude").chmod(0o755)
    path = f"{project}:{system}"
    found = registry.find_agent_program(spec, path, avoid=(str(project),))
    assert found == str(system / "claude")
    assert registry.find_agent_program(spec, str(project), avoid=(str(project),)) is None
    assert registry.find_agent_program(AdapterSpec(), path, avoid=()) is None
    assert registry.read_version(spec, found, {"PATH": path}) == "2.1.0"


@pytest.mark.parametrize(("said", "number"), [
    ("GitHub Copilot CLI 1.0.102.", "1.0.102"), ("codex-cli 0.46.0-alpha.1", "0.46.0-alpha.1"),
    ("Usage: mini [OPTIONS]", ""), ("v22.1", "22.1"), ("", ""),
])  # fmt: skip
def test_version_is_a_number(tmp_path, said, number):
    program = tmp_path / "agent"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    assert registry.read_version(BUILT_IN["claude"], str(program), {}) == number


@pytest.mark.parametrize("body", ["exit 1", "kill -9 $$", "head -c 100000 /dev/zero", "exit 0"])
def test_version_of_a_program_that_has_none(tmp_path, body):
    program = tmp_path / "agent"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    assert registry.read_version(BUILT_IN["claude"], str(program), {}) == ""


def test_version_is_read_in_an_empty_home(tmp_path):
    program = tmp_path / "agent"
    program.write_text('#!/bin/sh\necho "1.$(ls -A "$HOME" | wc -l)$SECRET"\n')
    program.chmod(0o755)
    owner = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SECRET": "real"}
    assert registry.read_version(AdapterSpec(program="agent"), str(program), owner) == "1.0"


def test_example_of_the_reference_page():
    docs = Path(__file__).parents[4] / "docs"
    page = (docs / "reference" / "agents.md").read_text(encoding="utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    found = registry.adapters(extra(example))
    assert found["claude"].model == "opus"
    assert found["mine"].commands.model == ("-m", "{model}")


def test_built_in_adapters_are_read_once():
    assert loader.load_adapters({})["claude"] is loader.load_adapters({})["claude"]
