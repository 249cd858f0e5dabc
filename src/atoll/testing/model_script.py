"""What a scripted model answers: turns, the tools that it calls, and pretended faults.

A script is stateless: it sees the conversation so far, as every request to a model carries it. So a
conversation that was rolled back, forked or resumed gets the answer of its own place.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atoll.model.errors import SpecError

Object = Mapping[str, Any]

_SHELLS = (
    "Bash", "bash", "exec_command", "shell_command", "shell", "local_shell", "run_shell_command",
    "developer__shell", "execute_bash", "run_commands", "run_command", "terminal",
)  # fmt: skip
_WRITERS = (
    "Write", "write", "write_file", "developer__write", "write_to_file", "create_file", "create",
    "apply_patch", "developer__text_editor", "text_editor", "file_editor", "str_replace_editor",
    "editor",
)  # fmt: skip
_PATHS = ("file_path", "filePath", "path", "absolute_path", "filename")
_CONTENTS = ("content", "file_text", "contents", "text")
_PATCHES = ("input", "patchText", "patch")
_DIRECTORY = re.compile(
    r"(?:[Ww]orking directory(?: is)?:?\s*|<cwd>|in the directory:\s*)`?(/[^\s<>`\"\\]*)"
)


class Shell(NamedTuple):
    """A command, for whichever tool of the agent runs one."""

    command: str


class Write(NamedTuple):
    """A file, for whichever tool of the agent writes one."""

    path: str
    content: str


class Call(NamedTuple):
    """A call of a tool by its name, as it is."""

    tool: str
    arguments: Object


Act = Shell | Write | Call


class Usage(NamedTuple):
    """The tokens that a reply reports; cached ones are part of the input."""

    input_tokens: int = 100
    output_tokens: int = 10
    cached_tokens: int = 0


USAGE = Usage()


class Fault(NamedTuple):
    """What happens instead of a good answer.

    `status`: an error in the form of the vendor; `cut`: half of the stream, then the end of the
    connection; `silent`: the request is accepted and never answered.
    """

    kind: str = "status"
    status: int = 500
    retry_after_s: float | None = None
    """When the quota is reset, in the headers and the body that the vendor uses for it."""
    times: int = 1


@dataclass(frozen=True)
class Turn:
    """One reply of the model. Without acts it ends the agent's turn."""

    say: str = ""
    acts: tuple[Act, ...] = ()
    usage: Usage | None = USAGE
    """None: the reply does not report it."""
    faults: tuple[Fault, ...] = ()
    """What the first requests for this reply get."""


class Tool(NamedTuple):
    """A tool that a request offers."""

    name: str
    properties: Mapping[str, Object] = {}
    required: tuple[str, ...] = ()
    is_free_form: bool = False
    """It takes a text instead of an object."""


class ToolCall(NamedTuple):
    tool: str
    arguments: Object | str
    """A text for a tool that is free-form."""


@dataclass(frozen=True)
class ModelRequest:
    """A request to a model, in the words of all formats."""

    model: str = ""
    tools: tuple[Tool, ...] = ()
    prompts: tuple[str, ...] = ()
    """What the user side said, including what agents add to it."""
    results: tuple[str, ...] = ()
    """Of tool calls."""
    replies: int = 0
    """How often the model has answered."""
    schema: Object = field(default_factory=dict, repr=False)
    """Of the JSON that the answer has to be; empty: any text will do."""
    text: str = field(default="", repr=False)
    """All of the request."""

    @property
    def directory(self) -> str:
        """Where the agent says that it works; empty if it does not say."""
        found = _DIRECTORY.search(self.text)
        return found[1].rstrip("/.,") if found else ""


Script = Callable[[ModelRequest], Turn]


def turns(*replies: Turn) -> Script:
    """Answers with one after the other; the last one again when they are used up."""
    if not replies:
        raise SpecError("a script needs at least one turn")
    return lambda conversation: replies[min(conversation.replies, len(replies) - 1)]


def parse_script(entries: object) -> Script:
    """A script from JSON: a list of turns.

    A turn has `say`, `shell`, `write` with `content`, `call` with `arguments`, `acts` (a list of
    the last three), `usage` (three numbers or null) and `faults` (a list of the keys of Fault).
    """
    if not isinstance(entries, list):
        raise SpecError("a script is a list of turns")
    return turns(*(_parse_turn(entry, number) for number, entry in enumerate(entries, 1)))


def side_reply(request: ModelRequest) -> Turn:
    """The answer to a request without tools, such as for a title or the choice of a model."""
    if not request.schema:
        return Turn("Scripted reply.")
    return Turn(json.dumps(_fitting(request.schema)))


def _fitting(schema: Object) -> object:
    """The least value of a JSON schema; strings are not empty."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    match str(schema.get("type", "")).lower():
        case "object":
            inner = schema.get("properties") or {}
            return {name: _fitting(inner.get(name, {})) for name in schema.get("required") or inner}
        case "array":
            return []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return "scripted"


def resolve(turn: Turn, conversation: ModelRequest) -> tuple[ToolCall, ...]:
    """The calls of a turn, of tools that the request offers.

    A request without tools is a side request of the agent, such as for a title: it gets none.
    """
    offered = {tool.name: tool for tool in conversation.tools}
    if not offered:
        return ()
    return tuple(_resolve(act, offered, conversation) for act in turn.acts)


def _resolve(act: Act, offered: Mapping[str, Tool], conversation: ModelRequest) -> ToolCall:
    match act:
        case Call(name, arguments):
            return ToolCall(name, arguments)
        case Shell(command):
            return _run(command, offered)
        case Write(path, content):
            return _write(Write(path, content), offered, conversation)


def _run(command: str, offered: Mapping[str, Tool]) -> ToolCall:
    tool = _find(_SHELLS, offered)
    if tool is None:
        if "exec" in offered:
            # A tool that runs JavaScript, in which the other tools are functions.
            return ToolCall("exec", _javascript(command))
        raise SpecError(f"none of the tools runs a command: {', '.join(offered)}")
    name = next((n for n in ("command", "cmd", "commands") if n in tool.properties), "command")
    listed = tool.properties.get(name, {}).get("type") == "array"
    words: object = command
    if listed:
        words = [command] if name == "commands" else ["bash", "-lc", command]
    return ToolCall(tool.name, {**_filler(tool), name: words})


def _javascript(command: str) -> str:
    quoted = command.replace("\\", "\\\\").replace("`", "\\`").replace("$", "\\$")
    return f"const result = await tools.exec_command({{cmd: `{quoted}`}});\ntext(result.output);\n"


def _write(act: Write, offered: Mapping[str, Tool], conversation: ModelRequest) -> ToolCall:
    tool = _find(_WRITERS, offered)
    if tool is None:
        quoted = shlex.quote(act.path)
        make = f"mkdir -p $(dirname {quoted}) && printf %s {shlex.quote(act.content)} > {quoted}"
        return _run(make, offered)
    if tool.name == "apply_patch":
        lines = "".join(f"+{line}\n" for line in act.content.splitlines())
        patch = f"*** Begin Patch\n*** Add File: {act.path}\n{lines}*** End Patch\n"
        name = next((name for name in _PATCHES if name in tool.properties), "input")
        return ToolCall(tool.name, patch if tool.is_free_form else {name: patch})
    path = act.path
    if not path.startswith("/") and conversation.directory:
        path = f"{conversation.directory}/{path}"
    names = {name: path for name in _PATHS if name in tool.properties}
    names |= {name: act.content for name in _CONTENTS if name in tool.properties}
    editor = {"command": "write" if "text_editor" in tool.name else "create"}
    return ToolCall(
        tool.name,
        {**_filler(tool), **(editor if "command" in tool.properties else {}), **names},
    )


def _find(names: Sequence[str], offered: Mapping[str, Tool]) -> Tool | None:
    return next((offered[name] for name in names if name in offered), None)


def _filler(tool: Tool) -> dict[str, object]:
    """A value for each property that the tool requires."""
    plain: dict[str, object] = {
        "boolean": False, "integer": 0, "number": 0, "array": [], "object": {},
    }  # fmt: skip
    found: dict[str, object] = {}
    for name in tool.required:
        schema = tool.properties.get(name, {})
        choices = schema.get("enum")
        found[name] = choices[0] if choices else plain.get(str(schema.get("type")), "scripted")
    return found


def _parse_turn(entry: object, number: int) -> Turn:
    where = f"turn {number} of the script"
    if not isinstance(entry, dict):
        raise SpecError(f"{where} is not an object")
    known = {"say", "acts", "usage", "faults", "shell", "write", "content", "call", "arguments"}
    if unknown := sorted(entry.keys() - known):
        raise SpecError(f"{where} has the unknown key `{unknown[0]}`")
    acts = [entry] if entry.keys() & {"shell", "write", "call"} else []
    usage = entry.get("usage", USAGE)
    return Turn(
        say=str(entry.get("say", "")),
        acts=tuple(_parse_act(act, where) for act in [*acts, *entry.get("acts", ())]),
        usage=None if usage is None else Usage(*map(int, usage)),
        faults=tuple(_parse_fault(fault, where) for fault in entry.get("faults", ())),
    )


def _parse_act(entry: Object, where: str) -> Act:
    if "shell" in entry:
        return Shell(str(entry["shell"]))
    if "write" in entry:
        return Write(str(entry["write"]), str(entry.get("content", "")))
    if "call" in entry:
        return Call(str(entry["call"]), dict(entry.get("arguments", {})))
    raise SpecError(f"an act of {where} is none of `shell`, `write` and `call`")


def _parse_fault(entry: Mapping[str, Any], where: str) -> Fault:
    if unknown := sorted(set(entry) - set(Fault._fields)):
        raise SpecError(f"a fault of {where} has the unknown key `{unknown[0]}`")
    if entry.get("kind", "status") not in {"status", "cut", "silent"}:
        raise SpecError(f"a fault of {where} has the unknown kind `{entry['kind']}`")
    return Fault(**entry)
