"""Writes the generated reference pages: what the program itself says, put in order.

    python tools/reference.py           write docs/reference/{agents,cli,presets,…}.md
    python tools/reference.py --check   exit 1 and name the pages that are out of date

Law: the same source gives the same bytes, on every machine. What a key does today cannot be read
from a schema, so it stands in `TODAY`; `tests/architecture/test_docs.py` tries each entry.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from atoll.cli.app import VERBS, root
from atoll.drivers import registry
from atoll.engine.change.risk_rules import documented
from atoll.engine.project.settings import ENVIRONMENT, load_config
from atoll.model.adapter import AdapterSpec, Login
from atoll.model.enclosure import SETTABLE_LIMITS, LimitKind
from atoll.model.limits import render_limit
from atoll.model.presets import FOUND, PRESETS
from atoll.model.projectfile import project_schema, user_schema

PAGES = Path(__file__).parents[1] / "docs" / "reference"
CLI_INTRODUCTION = """\
`atoll VERB …`. Results go to standard output, progress and notes to standard error. See
[exit codes](exit-codes.md), [JSON](json.md) and [environment](environment.md)."""
PROJECT_FILE_INTRODUCTION = """\
`atoll.toml` in the project's root. Every key is optional; unknown keys and invalid values are
errors, which are reported together. [Write a project file](../how-to/write-a-project-file.md) is a
guide; `atoll schema` prints the JSON schema that this page is generated from.

*Today* is what the key does in this version. Unsupported settings are refused when a capsule is
created. `NAME` is a name that you choose."""
SETTINGS_INTRODUCTION = """\
Each source overrides the ones to its left: default, the user's own file
(`~/.config/atoll/config.toml`), the project's `atoll.toml`, the environment, the command line.
`atoll show --config` shows the source of each value. [Project file](project-file.md) describes each
key and whether it works today."""
SETTINGS_END = """\
A limit of `none` on the command line or in the environment removes a limit set in a file."""
SETTINGS_OF_USER = """\
## Agents

Only in the user's own file: how agents are started, what they may use, what models cost, and how
you hear of them. `NAME` in `prices` is a model, or the beginning of its name."""
RISKY_FILES_INTRODUCTION = """\
The kinds of changed files that can run code on your machine, or widen what it trusts. They are
listed with their difference, and need a yes, before a promotion brings them to your checkout.
`--accept KIND` accepts one kind, `--accept risky` all of them.

A pattern is a name, a directory (with `/` at its end: everything below it) or the end of a path.
`*` stands for any text in a name. Patterns count in every directory, and regardless of case, of
dots and spaces at the end of a name and of invisible characters. A deleted file counts as well.
A file can be of several kinds, and then needs a yes for each.

The list is made from the files alone: nothing is executed or checked out. It cannot know what your
own programs read. Ordinary source files, tests and documentation are not on it, although tests and
builds run them: review what you run."""
AGENTS_INTRODUCTION = """\
The agents that Atoll knows. `atoll agents --available` shows which of them are installed and logged
in on this machine. An agent's program is found on your PATH and runs inside the capsule; your login
stays outside, and the capsule holds placeholders ([run an agent](../how-to/run-an-agent.md))."""
AGENTS_LIMITS = """\
The tests run the real programs of Claude Code, Codex, Gemini CLI, OpenCode and goose.

An option that an agent's command line does not have is refused: no agent has `--effort` but Aider,
Claude Code, Cline, Codex, GitHub Copilot CLI, pi and, without `-i`, OpenCode.

`amp` was never run to the end of a task, because its threads are on Amp's own servers. Amp
documents its stream of events as compatible with that of Claude Code. It has no option for a
model; `--model` gives its mode, such as `low`, `medium` or `high`, which chooses the model too.
Allowed are the requests that version 0.0.1790142911 made to a server of ours: its API, the creation
of threads, and their WebSocket, but no telemetry. Whether it needs others later in a task, for
example for attachments, is not known; a list `allow` of your own replaces this one."""
AGENTS_OWN = """\
## Your own agents

A table `[agents.NAME]` in your settings file (`~/.config/atoll/config.toml`) changes keys of the
built-in adapter of that name, or is a whole adapter; tables are merged, and a list replaces a list.
Unknown keys are errors.

```toml
[agents.claude]
model = "opus"

[agents.mine]
program = "mine"
events = "script"
commands = { headless = ["mine", "{model_options}", "--task={prompt}"], model = ["-m", "{model}"] }

[[agents.mine.logins]]
kind = "key"
title = "API key"
variable = "MINE_API_KEY"
hosts = ["api.example.org"]
allow = ["POST /v1/*"]
cure = "export MINE_API_KEY=…"
```

Command lines are lists of words, which no shell reads. These words are replaced:"""
AGENTS_WORDS = {
    "{prompt}": "the prompt; a word that contains it is left out when there is none",
    "{prompt_file}": "the path of a file that holds the prompt",
    "{model}, {effort}": "what was chosen",
    "{model_options}, {effort_options}": "alone in a word: the words of `model` or `effort`, when "
    "one is chosen",
    "{home}, {workspace}": "the directories inside",
    "{key}, {key_tail}": "the placeholder of a key, and its last 20 characters",
}
PRESETS_INTRODUCTION = """\
Names for lists of destinations, for `capsule.allow` and `atoll allow NAME`. All apply to ports 80
and 443. See [networks](../explanation/network.md)."""
PRESETS_FOUND = """\
Package registries are read from the configuration of this machine's tools and cached until a tool
or its configuration changes. `atoll allow NAME` shows the result. The project's own files are not
used for this."""
GENERATED = (
    "<!-- Written by `make docs` (tools/reference.py). Change the source, not this page. -->"
)
COMMON = ("as_json", "project", "quiet", "verbose")

EXAMPLES: dict[str, tuple[str, ...]] = {
    "agents": ("atoll agents", "atoll agents --watch", "atoll agents --available"),
    "allow": (
        "atoll allow fix-auth",
        "atoll allow fix-auth api.example.org",
        "atoll allow fix-auth host:5432",
        "atoll allow fix-auth host:5432 --revoke",
    ),
    "approve": ("atoll approve fix-auth production",),
    "attach": ("atoll attach fix-auth", "atoll attach fix-auth.2"),
    "bench": (
        "atoll bench workspace",
        "atoll bench sandbox",
        "atoll bench network",
        "atoll bench idle",
        "atoll bench workspace --size S --quick",
        "atoll bench workspace --size all --repeat 50 --json",
    ),
    "bisect": ("atoll bisect fix-auth --check test", "atoll bisect fix-auth --good 2 --bad 7"),
    "browser": (
        "atoll browser status fix-auth",
        "atoll browser settings fix-auth --for playwright-mcp",
        "atoll browser reset fix-auth",
    ),
    "check": (
        "atoll check fix-auth",
        "atoll check fix-auth test lint --again",
        "atoll check fix-auth --here",
        "atoll check fix-auth --junit report.xml",
    ),
    "checkout": ("atoll checkout fix-auth", "atoll checkout --none"),
    "code": ("atoll code fix-auth", "atoll code fix-auth src --with pycharm"),
    "commit": ('atoll commit fix-auth -m "auth: refuse empty tokens"',),
    "compare": (
        "atoll compare faster",
        "atoll compare faster --html faster.html",
        "atoll compare faster --diff faster-1 faster-2",
    ),
    "completion": ("atoll completion bash", "atoll completion fish"),
    "daemon": ("atoll daemon", "atoll daemon stop", "atoll daemon logs"),
    "demo": ("atoll demo", "atoll demo --keep demo-place"),
    "diff": ("atoll diff fix-auth", "atoll diff fix-auth --stat", "atoll diff fix-auth 3"),
    "doctor": ("atoll doctor",),
    "edit": ("atoll edit fix-auth", "atoll edit fix-auth -- vim src"),
    "export": ("atoll export fix-auth", "atoll export fix-auth --all"),
    "fork": ("atoll fork fix-auth second-try", "atoll fork fix-auth second-try --at 3"),
    "gc": ("atoll gc --dry-run", "atoll gc", "atoll gc --gone"),
    "graft": (
        "atoll graft faster faster-1:src/parser faster-2:tests",
        "atoll graft faster faster-1 faster-2:docs --name both",
    ),
    "history": ("atoll history", "atoll history fix-auth --json"),
    "init": ("atoll init --dry-run", "atoll init"),
    "levels": ("atoll levels",),
    "logs": ("atoll logs fix-auth", "atoll logs fix-auth 2 -f"),
    "ls": ("atoll ls", "atoll ls --json"),
    "network": ("atoll network fix-auth", "atoll network fix-auth --refused -f"),
    "new": (
        "atoll new fix-auth",
        "atoll new fix-auth --from v1.2 --limit time=2h",
        "atoll new try -n 3",
        "atoll new fix-auth --dirty",
        "atoll new fix-auth --workspace copy",
        "atoll new fix-auth --dry-run",
    ),
    "open": ("atoll open fix-auth web", "atoll open fix-auth 3000 --headless"),
    "path": ("atoll path fix-auth",),
    "pick": (
        "atoll pick faster",
        "atoll pick faster faster-2",
        'atoll pick faster --rule "checks, crosstests, bench:lower, diff:lower"',
        "atoll pick faster --judge ./judge.sh --discard-losers",
    ),
    "ports": ("atoll ports", "atoll ports fix-auth --json"),
    "promote": (
        "atoll promote fix-auth",
        "atoll promote fix-auth --to staging --accept risky",
        "atoll promote fix-auth --status",
    ),
    "ps": ("atoll ps fix-auth",),
    "race": (
        'atoll race "make the importer 2x faster" --agents claude:2,codex --check test',
        "atoll race --vary MODEL=a,b,c --check test -- ./attempt",
        "atoll race --prompts prompts.txt --max 2 -- ./attempt {prompt}",
        'atoll race "fix the flaky test" --agents claude:3 --promote -d',
    ),
    "race ls": ("atoll race ls",),
    "race show": ("atoll race show faster", "atoll race show faster --json"),
    "race resume": ("atoll race resume faster", "atoll race resume faster -d"),
    "race stop": ("atoll race stop faster",),
    "race rm": ("atoll race rm faster", "atoll race rm faster --force"),
    "recover": (
        "atoll recover",
        "atoll recover fix-auth --as fix-auth-2",
        "atoll recover fix-auth --drop --dry-run",
        "atoll recover fix-auth --drop",
    ),
    "rm": (
        "atoll rm fix-auth --dry-run",
        "atoll rm try-1 try-2 try-3",
        "atoll rm fix-auth --keep-branch",
        "atoll rm fix-auth --force",
    ),
    "rollback": ("atoll rollback fix-auth", "atoll rollback fix-auth 3 --stop"),
    "run": (
        "atoll run fix-auth --write 'src/payments/**' -- make test",
        "atoll run fix-auth -- make test",
        "atoll run fix-auth -d -- npm run dev",
        "atoll run fix-auth --timeout 10m -- make test",
        "atoll run fix-auth --network none -- make test",
    ),
    "schema": ("atoll schema",),
    "secret set": (
        "atoll secret set STRIPE_KEY --broker api.stripe.com --allow-request 'POST /v1/*'",
        "atoll secret set DATABASE_URL --from-env",
        "atoll secret set NPM_TOKEN --from-command 'pass show npm' --ttl 8h",
        "atoll secret set GH_TOKEN --broker github.com --repository ada/shop",
        "atoll secret set NPM_TOKEN --from-keyring npm/ada",
        "atoll secret set KUBECONFIG --from-file ~/.kube/config --as-file '~/.kube/config'",
    ),
    "secret ls": ("atoll secret ls", "atoll secret ls --json"),
    "secret grant": ("atoll secret grant STRIPE_KEY fix-auth --ttl 2h",),
    "secret revoke": ("atoll secret revoke STRIPE_KEY fix-auth",),
    "secret rotate": ("atoll secret rotate STRIPE_KEY",),
    "secret audit": ("atoll secret audit STRIPE_KEY",),
    "secret rm": ("atoll secret rm STRIPE_KEY",),
    "secret unlock": ("atoll secret unlock",),
    "secret lock": ("atoll secret lock",),
    "secret passphrase": ("atoll secret passphrase", "atoll secret passphrase --remove"),
    "shell": ("atoll shell fix-auth",),
    "show": ("atoll show fix-auth", "atoll show --config", "atoll show --base"),
    "snapshot": (
        'atoll snapshot fix-auth -m "before the migration"',
        "atoll snapshot fix-auth --auto",
        "atoll snapshot fix-auth --no-auto",
    ),
    "snapshots": ("atoll snapshots fix-auth", "atoll snapshots fix-auth -n 0"),
    "pause": ("atoll pause fix-auth",),
    "resume": ("atoll resume fix-auth",),
    "spawn": (
        'atoll spawn claude "fix the auth regression"',
        'atoll spawn codex "add tests" --check "make test" -n 3',
        "atoll spawn claude -i --name pair",
        'atoll spawn "update the docs" --budget 5usd --timeout 1h',
        'atoll spawn command "fix it" -- ./agent --task {prompt}',
    ),
    "stop": ("atoll stop fix-auth", "atoll stop fix-auth 2 --grace 1"),
    "tell": ('atoll tell fix-auth "also update the docs"', "atoll tell fix-auth --budget +5"),
    "transcript": ("atoll transcript fix-auth", "atoll transcript fix-auth --html"),
    "trust": ("atoll trust",),
    "try": (
        "atoll try fix-auth -- npx codemod rename-api",
        "atoll try fix-auth --check test -- make format",
    ),
    "undo": ("atoll undo", "atoll undo fix-auth"),
    "untrust": ("atoll untrust",),
    "verify": (
        "atoll verify fix-auth",
        "atoll verify fix-auth --all",
        "atoll verify fix-auth --json",
    ),
    "watch": ("atoll watch fix-auth", "atoll watch fix-auth --no-follow"),
    "wait": ("atoll wait fix-auth", "atoll wait fix-auth 2 --timeout 60"),
    "warm": ("atoll warm", "atoll warm --check"),
}
"""Parsed by the verb itself before it is printed, so that none can be out of date."""

YES = "yes"
LIMIT = "at `sandbox`; refused by the levels below (exit 6)"
GRANTED = "yes: once it is granted with `atoll secret grant`"
NOT_STARTED = "read and checked; services are not started yet"

TODAY: dict[str, str] = {
    "project.name": YES,
    "project.base": YES,
    "project.carry": "refused at `none` and `worktree` (exit 3); "
    "at the other levels: only listed paths are copied",
    "project.never": "yes: at `clone` and `sandbox`, which carry ignored files",
    "capsule.level": "`none`, `worktree`, `clone` and `sandbox`; the others are refused (exit 6)",
    "capsule.network": "at `sandbox` all; elsewhere `open`, the others are refused (exit 6)",
    "capsule.allow": LIMIT,
    "capsule.limits.time": YES,
    **{f"capsule.limits.{name}": LIMIT for name in SETTABLE_LIMITS if name != "time"},
    "capsule.setup": YES,
    "capsule.setup_network": "at `sandbox` all; elsewhere `open`, the others are refused (exit 6)",
    "capsule.env": YES,
    "tools.use": "`none` only; the others are refused (exit 3)",
    "services.NAME.port": "set as `ATOLL_PORT_<NAME>`; "
    "below level `sandbox` a leased port is set instead",
    **{
        f"services.NAME.{key}": NOT_STARTED
        for key in ("command", "use", "on_switch", "restart", "data", "shared", "needs", "env")
    },
    **{
        f"services.NAME.ready.{key}": NOT_STARTED
        for key in ("http", "tcp", "command", "log", "timeout")
    },
    **{f"secrets.NAME.from.{key}": GRANTED for key in ("env", "file", "command", "keyring")},
    **{
        f"secrets.NAME.as.{key}": "at `sandbox`, " + GRANTED.partition(": ")[2]
        for key in ("file", "broker", "allow", "deny", "repository")
    },
    "secrets.NAME.ttl": GRANTED,
    **{f"checks.NAME.{key}": YES for key in ("run", "timeout", "retries", "figures", "junit")},
    "checks.NAME.needs": "such a check is refused (exit 3): services cannot be started yet",
    **{
        f"stages.NAME.{key}": YES
        for key in (
            "checks",
            "branch",
            "merge",
            "run",
            "approve",
            "undo",
            "timeout",
            "soak",
            "health",
        )
    },
}

SPOKEN = {
    "project.name": "the directory's name",
    "project.carry": "everything git ignores, except files that look like secrets",
    "capsule.allow": "`model-apis`, and what the project's files call for",
}
"""Defaults that are no value."""

Schema = Mapping[str, Any]


SHARES = {0.75: "3/4 of the machine's", 1.0: "all"}


def default_limit(kind: LimitKind) -> str:
    """Two of them depend on the machine."""
    return SHARES[kind.share] if kind.default is None else render_limit(kind, kind.default)


def defaults() -> dict[str, str]:
    """The default values, as the merge of all settings returns them."""
    nowhere = {"XDG_CONFIG_HOME": "/nonexistent"}
    settings = load_config(Path("/nonexistent/project"), nowhere).settings
    defaults = {setting.key: str(setting.value) for setting in settings.values.values()}
    return {
        **defaults,
        **{f"capsule.limits.{kind.name}": default_limit(kind) for kind in SETTABLE_LIMITS.values()},
    }


def render_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def render_page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", GENERATED, *(block for block in blocks if block)]) + "\n"


# The command line


def render_cli() -> str:
    context = click.Context(root, info_name="atoll")
    commands = {verb: root.get_command(context, verb) for verb in sorted(VERBS)}
    common = [param for param in root.params if param.name in COMMON]
    index = render_table(
        ("verb", "does"), ((f"[`{verb}`](#atoll-{verb})", VERBS[verb]) for verb in commands)
    )
    blocks = [
        CLI_INTRODUCTION,
        index,
        "## Options of every verb",
        "They can be given before or after the verb.",
        render_options(common),
    ]
    for verb, command in commands.items():
        if command is None:
            raise SystemExit(f"error: `{verb}` has no command")
        blocks += _verb_blocks(verb, command)
    return render_page("Command line", *blocks)


def _verb_blocks(verb: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield from _group_blocks(verb, command)
        return
    yield f"{'###' if ' ' in verb else '##'} `atoll {verb}`"
    yield from _command_blocks(verb, command)


def _command_blocks(verb: str, command: click.Command) -> Iterator[str]:
    words = ["atoll", verb, "[OPTIONS]"]
    words += [_argument(param) for param in command.params if isinstance(param, click.Argument)]
    own = [param for param in command.params if param.name not in COMMON]
    yield "\n\n".join(_help_lines(command))
    yield "```\n" + " ".join(words) + "\n```"
    yield render_options(own)
    yield "Examples:"
    lines = EXAMPLES[verb]
    for line in lines:
        require_parses(command, line, words=verb.count(" ") + 2)
    yield "```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```"


def _group_blocks(verb: str, group: click.Group) -> Iterator[str]:
    """A verb with commands of its own."""
    yield f"## `atoll {verb}`"
    yield "\n\n".join(_help_lines(group))
    for name, command in group.commands.items():
        if name == getattr(group, "default", None):
            yield from _command_blocks(verb, command)
        else:
            yield from _verb_blocks(f"{verb} {name}", command)


def _help_lines(command: click.Command) -> Iterator[str]:
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            yield _list(paragraph.replace("\b", ""))
        elif text := " ".join(paragraph.split()):
            yield text


def _list(paragraph: str) -> str:
    """A paragraph that click does not wrap: one name and its description per line."""
    rows = (line.split(maxsplit=1) for line in paragraph.splitlines() if line.strip())
    return "\n".join(f"- `{name}`: {text}" for name, text in rows)


def _argument(param: click.Argument) -> str:
    if isinstance(param.type, click.Choice) and param.metavar is None:
        choices = "|".join(param.type.choices)
        return f"{{{choices}}}" if param.required else f"[{choices}]"
    shown = param.metavar or param.human_readable_name.upper()
    if param.metavar is None and param.nargs == -1:
        shown += "..."
    return shown if param.required or shown.startswith("[") else f"[{shown}]"


def render_options(params: Sequence[click.Parameter]) -> str:
    rows = []
    for param in params:
        if not isinstance(param, click.Option):
            continue
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
        rows.append((names, _value(param), _described(param)))
    return render_table(("option", "value", "meaning"), rows) if rows else ""


def _value(param: click.Option) -> str:
    if param.is_flag:
        return ""
    if param.metavar:
        return f"`{param.metavar}`"
    if isinstance(param.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in param.type.choices)
    return "number" if isinstance(param.type, (click.IntRange, click.FloatRange)) else "text"


def _described(param: click.Option) -> str:
    text = param.help or ""
    if param.required:
        text += " Required."
    if isinstance(param.default, (int, float)) and not param.is_flag:
        text += f" Default: {param.default:g}."
    if isinstance(param.default, str) and param.show_default:
        text += f" Default: `{param.default}`."
    return text


def require_parses(command: click.Command, line: str, *, words: int = 2) -> None:
    """Raises SystemExit when the verb, which the first words name, would not understand an
    example.
    """
    given = shlex.split(line)[words:]
    try:
        context = command.make_context(command.name, given, resilient_parsing=False)
    except click.ClickException as error:
        raise SystemExit(f"error: the example `{line}`: {error.format_message()}") from error
    context.close()


# The project file


def render_project_file() -> str:
    schema = project_schema()
    known = defaults()
    blocks = [PROJECT_FILE_INTRODUCTION]
    for key, section in schema["properties"].items():
        described = _resolved(schema, section)["description"]
        rows = (
            (
                f"`{path}`",
                type_of(schema, field),
                _default(path, field, known, required=required),
                described_as(schema, field),
                TODAY[path],
            )
            for path, field, required in fields(schema, section, key)
        )
        blocks += [f"## `[{_heading(schema, key)}]`", described]
        blocks.append(render_table(("key", "type", "default", "meaning", "today"), rows))
    return render_page("Project file", *blocks)


def _heading(schema: Schema, key: str) -> str:
    return f"{key}.NAME" if "additionalProperties" in schema["properties"][key] else key


def _resolved(schema: Schema, field: Schema) -> Schema:
    """A field with what its reference says; the field's own words win."""
    if "$ref" not in field:
        return field
    target = schema["definitions"][field["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in field.items() if key != "$ref"}}


def fields(
    schema: Schema, field: Schema, path: str, *, required: bool = False
) -> Iterator[tuple[str, Schema, bool]]:
    """Every key below `path` that takes a value: (dotted path, its schema, whether it must be)."""
    whole = _resolved(schema, field)
    inner = whole.get("additionalProperties")
    if isinstance(inner, Mapping) and "$ref" in inner:
        yield from fields(schema, inner, f"{path}.NAME")
    elif "properties" in whole:
        for name, below in whole["properties"].items():
            must = name in whole.get("required", ())
            yield from fields(schema, below, f"{path}.{name}", required=must)
    else:
        yield path, field, required


def type_of(schema: Schema, field: Schema) -> str:
    whole = _resolved(schema, field)
    if "enum" in whole:
        return ", ".join(f'`"{choice}"`' for choice in whole["enum"])
    if "examples" in whole:
        return f"number or text, such as `{whole['examples'][0]}`"
    if "anyOf" in whole:
        kinds = {choice.get("type") for choice in whole["anyOf"]}
        return "size, such as `4G`" if "integer" in kinds else "duration, such as `1h30m`"
    kind = whole.get("type")
    if kind in ("integer", "number"):
        return f"number from {whole['minimum']} to {whole['maximum']}"
    return {"array": "list of text", "object": "table of text", "boolean": "`true` or `false`"}.get(
        str(kind), "text"
    )


def described_as(schema: Schema, field: Schema) -> str:
    """The schema's words; the default has a column of its own, which says what holds today."""
    text, _, _ = str(_resolved(schema, field).get("description", "")).partition("; default:")
    return text if text.endswith(".") else f"{text}."


def _default(path: str, field: Schema, known: Mapping[str, str], *, required: bool) -> str:
    if required:
        return "required"
    if path in SPOKEN:
        return SPOKEN[path]
    if path in known:
        if known[path] in SHARES.values():
            return known[path]
        is_number = field.get("type") in ("integer", "number")
        return f"`{known[path]}`" if is_number else f'`"{known[path]}"`'
    return _shown(field.get("default"))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return ", ".join(f'`"{one}"`' for one in value) or "none"
    return f'`"{value}"`' if value else "none"


# The settings


def render_presets() -> str:
    kept = (
        (f"`{name}`", ", ".join(f"`{rule}`" for rule in rules)) for name, rules in PRESETS.items()
    )
    found = ((f"`{name}`", what) for name, what in FOUND.items())
    return render_page(
        "Presets",
        PRESETS_INTRODUCTION,
        render_table(("preset", "stands for"), kept),
        PRESETS_FOUND,
        render_table(("preset", "stands for"), found),
    )


def render_risky_files() -> str:
    blocks = []
    for kind, why, patterns, by_content in documented():
        blocks.append(f"## `{kind}`\n\n{why[0].upper()}{why[1:]}.")
        if by_content:
            blocks.append(f"{by_content[0].upper()}{by_content[1:]}.")
        if patterns:
            blocks.append(", ".join(f"`{pattern}`" for pattern in patterns))
    return render_page("Risky files", RISKY_FILES_INTRODUCTION, *blocks)


def render_settings() -> str:
    variables = {key: name for name, key in ENVIRONMENT.items()}
    options = {
        "project.base": "`new --from REF`",
        "capsule.level": "`new --level LEVEL`",
        "capsule.network": "`new --network MODE`",
        "capsule.workspace": "`new --workspace DRIVER`",
    }
    known = defaults()
    rows = []
    paths = [path for path, _, _ in fields(project_schema(), project_schema(), "")]
    in_files = {path.removeprefix(".") for path in paths}
    # What says how this machine works, and nothing of the project, stands in no file.
    for key in [*(path.removeprefix(".") for path in paths), *sorted(set(variables) - in_files)]:
        section, _, name = key.partition(".")
        if section not in ("project", "capsule", "tools"):
            continue
        limit = name.removeprefix("limits.") if name.startswith("limits.") else None
        variable = f"ATOLL_LIMIT_{limit.upper()}" if limit else variables.get(key, "")
        option = f"`new --limit {limit}=VALUE`" if limit else options.get(key, "")
        in_user_file = section != "project" and key != "capsule.setup" and key in in_files
        default = SPOKEN.get(key) or known.get(key, "none")
        rows.append(
            (f"`{key}`", default, "yes" if in_user_file else "", "yes" if key in in_files else "",
             f"`{variable}`" if variable else "", option)
        )  # fmt: skip
    columns = ("setting", "default", "user file", "atoll.toml", "environment", "command line")
    return render_page(
        "Settings", SETTINGS_INTRODUCTION, render_table(columns, rows), SETTINGS_END,
        SETTINGS_OF_USER, _user_table(),
    )  # fmt: skip


def _user_table() -> str:
    """The keys that only the user's own file has; adapters have a page of their own."""
    schema, shared = user_schema(), project_schema()["properties"]
    rows = (
        (
            f"`{path}`",
            type_of(schema, field),
            _default(path, field, {}, required=required),
            described_as(schema, field),
        )
        for key, section in schema["properties"].items()
        if key not in shared and key != "agents"
        for path, field, required in fields(schema, section, key)
    )
    return render_table(("key", "type", "default", "meaning"), rows)


# Agents


def render_agents() -> str:
    known = registry.adapters({})
    rows = (
        (
            f"`{name}`",
            spec.title,
            f"`{spec.install}`",
            "; ".join(_login(login) for login in spec.logins),
            spec.events if spec.events != "text" else "none",
            "yes" if spec.commands.headless_resume else "no",
        )
        for name, spec in known.items()
    )
    columns = ("agent", "title", "installed by", "logins, the first one that is found", "events",
               "resumes")  # fmt: skip
    words = ((f"`{name}`", text) for name, text in AGENTS_WORDS.items())
    return render_page(
        "Agents",
        AGENTS_INTRODUCTION,
        render_table(columns, rows),
        AGENTS_LIMITS,
        AGENTS_OWN,
        render_table(("word", "stands for"), words),
        *_adapter_keys(),
    )


def _login(login: Login) -> str:
    found = f"`{login.variable}`" if login.kind == "key" else f"`{login.file}`"
    return f"{found} ({login.title})"


def _adapter_keys() -> Iterator[str]:
    """One table of keys for each table of an adapter."""
    schema = AdapterSpec.model_json_schema()
    schema = {**schema, "definitions": schema["$defs"]}
    yield from _keys_of(schema, schema, "[agents.NAME]")
    for key, field in schema["properties"].items():
        inner = field.get("items", field)
        if "$ref" in inner:
            name = f"agents.NAME.{key}"
            title = f"[[{name}]]" if "items" in field else f"[{name}]"
            yield from _keys_of(schema, _resolved(schema, {"$ref": inner["$ref"]}), title)


def _keys_of(schema: Schema, table: Schema, title: str) -> Iterator[str]:
    yield f"## `{title}`"
    if title != "[agents.NAME]":
        yield str(table["description"])
    rows = []
    for key, field in table["properties"].items():
        must = key in table.get("required", ())
        default = "required" if must else _shown(field.get("default"))
        rows.append((f"`{key}`", _kind_of(schema, field), default, described_as(schema, field)))
    yield render_table(("key", "type", "default", "meaning"), rows)


def _kind_of(schema: Schema, field: Schema) -> str:
    """The type of a key of an adapter."""
    if "$ref" in field:
        return "table"
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    whole = kinds[0]
    if whole.get("type") == "array":
        inner = whole["items"]
        if "$ref" in inner:
            return "list of tables"
        return "list of lists of text" if inner.get("type") == "array" else "list of text"
    return type_of(schema, whole)


# Writing and checking


def pages() -> dict[str, str]:
    return {
        "cli.md": render_cli(),
        "project-file.md": render_project_file(),
        "settings.md": render_settings(),
        "presets.md": render_presets(),
        "agents.md": render_agents(),
        "risky-files.md": render_risky_files(),
    }


def out_of_date(directory: Path, wanted: Mapping[str, str]) -> list[str]:
    """The pages that are missing or say something else."""

    def current(name: str) -> str | None:
        path = directory / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return [name for name, text in wanted.items() if current(name) != text]


def main(arguments: Sequence[str]) -> int:
    if list(arguments) not in ([], ["--check"]):
        print("usage: tools/reference.py [--check]", file=sys.stderr)
        return 2
    wanted = pages()
    stale = out_of_date(PAGES, wanted)
    if arguments:
        for name in stale:
            print(f"docs/reference/{name} is out of date", file=sys.stderr)
        if stale:
            print("hint: make docs", file=sys.stderr)
        return 1 if stale else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (PAGES / name).write_text(wanted[name], encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
