"""What an adapter file says about an agent's command line program.

One adapter is one TOML file (`drivers/agent/adapters/NAME.toml`), or a table `[agents.NAME]` in the
user's settings. Command lines are lists of words; a word is never split and never passes a shell.
`command_line` replaces the words in braces:

    {prompt}            the prompt; a word with it is left out when there is none
    {prompt_file}       the path of a file that holds the prompt
    {model}, {effort}   the chosen ones
    {model_options}     alone in a word: the words of `model`, when one is chosen
    {effort_options}    likewise the words of `effort`
    {home}              the home directory inside
    {workspace}         the workspace inside
    {key}               the placeholder of a login that is a single key
    {key_tail}          its last 20 characters
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator
from pydantic.functional_validators import AfterValidator

from atoll.model import request_rules, rules

_NAMES = ("prompt", "prompt_file", "model", "effort", "home", "workspace", "key", "key_tail")
_BRACES = re.compile("{(" + "|".join(_NAMES) + ")}")
_LIKE_NAMES = re.compile(r"(?<!\$)\{([a-z_]{1,40})\}")
_PLACE = re.compile(
    r"(?:~|\$\{(?P<variable>[A-Z_][A-Z0-9_]*):-(?P<default>~[^{}$]*)\})(?P<rest>/.*)"
)
_UPSTREAM = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?:/[!-~]*)?")
_KEY_TAIL = 20


def _require_place(text: str) -> str:
    if not _PLACE.fullmatch(text) or ".." in text.split("/") or "\n" in text:
        raise ValueError("must begin with `~/`, or with `${VARIABLE:-~/…}/`, and have no `..`")
    return rules.require_plain(text)


def _require_home_path(text: str) -> str:
    parts = text.split("/")
    if not text or text.startswith(("/", "~")) or ".." in parts or "" in parts:
        raise ValueError("must be a path below the home directory, without `..`")
    return rules.require_plain(text)


def _require_upstream(text: str) -> str:
    if text and not _UPSTREAM.fullmatch(text):
        raise ValueError("must be a URL such as `http://127.0.0.1:8080`, without a user name")
    return text


def _require_rule(text: str) -> str:
    request_rules.parse_rule(text)
    return text


def _require_known_words(text: str) -> str:
    known = (*_NAMES, "model_options", "effort_options")
    for word in _LIKE_NAMES.findall(text):
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            suffix = f"; did you mean `{{{close[0]}}}`?" if close else ""
            raise ValueError(f"`{{{word}}}` stands for nothing{suffix}")
    return rules.require_plain(text)


Word = Annotated[StrictStr, AfterValidator(rules.require_plain)]
Words = tuple[Word, ...]
CommandWords = tuple[Annotated[StrictStr, AfterValidator(_require_known_words)], ...]
Variable = Annotated[StrictStr, AfterValidator(rules.require_variable)]
Host = Annotated[StrictStr, AfterValidator(rules.require_host)]
NetworkRule = Annotated[StrictStr, AfterValidator(rules.require_allow_rule)]
OwnerPlace = Annotated[StrictStr, AfterValidator(_require_place)]
HomePath = Annotated[StrictStr, AfterValidator(_require_home_path)]
RequestRuleText = Annotated[StrictStr, AfterValidator(_require_rule)]
Upstream = Annotated[StrictStr, AfterValidator(_require_upstream)]
StreamName = Literal[
    "text",
    "script",
    "claude",
    "codex",
    "gemini",
    "qwen",
    "opencode",
    "copilot",
    "goose",
    "pi",
    "cline",
    "openhands",
]
SessionName = Literal[
    "", "claude-session", "codex-session", "gemini-session", "qwen-session", "copilot", "pi-session"
]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommandLines(_Table):
    """How the program is started for a new task, for the next message, and on the screen."""

    headless: CommandWords = Field((), description="Answers one prompt and exits.")
    headless_resume: CommandWords = Field(
        (), description="Continues the latest conversation with one more prompt and exits."
    )
    interactive: CommandWords = Field(
        (),
        description="Starts the program's own screen; without `{prompt}` it takes no first one.",
    )
    interactive_resume: CommandWords = Field((), description="Opens it on the latest conversation.")
    prompt_by: Literal["argument", "stdin", "file"] = Field(
        "argument",
        description="How a headless command gets the prompt: as `{prompt}`, on standard input, or "
        "in the file `{prompt_file}`.",
    )
    model: CommandWords = Field((), description="What `{model_options}` stands for.")
    effort: CommandWords = Field((), description="What `{effort_options}` stands for.")
    before: tuple[CommandWords, ...] = Field(
        (), description="Commands to run once in a new capsule, such as a login."
    )


class HomeFileSpec(_Table):
    """A file that is written into the capsule's private home before the agent starts.

    JSON files of one path are merged, table by table; the later one wins.
    """

    path: HomePath = Field(description="Below the home directory.")
    content: StrictStr = Field(
        description="The text, with `{home}`, `{workspace}`, `{key}` and `{key_tail}`."
    )


class Login(_Table):
    """One way in which the program finds the owner's login on the host.

    `key`: a variable, read from the owner's environment and from the vault. `json`: a file of which
    the capsule gets a copy that holds the `keep` and `tokens` keys alone, the latter as
    placeholders. Dotted keys lead into tables, and into the claims of a JWT.
    """

    kind: Literal["key", "json"] = Field(description="`key`: a variable; `json`: a file.")
    title: StrictStr = Field(description="What people call it: API key, subscription.")
    variable: Variable | None = Field(None, description="The variable that carries a key.")
    prefix: StrictStr = Field("", description="What a well-formed key begins with.")
    file: OwnerPlace | None = Field(
        None, description="The file on the host: `~/…`, or `${VARIABLE:-~/…}/…`."
    )
    inside: HomePath | None = Field(
        None, description="Where the copy goes, below the home directory; default: the same place."
    )
    tokens: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys of the values that the broker puts in; JWTs keep their claims."
    )
    unused: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys of credentials that stay outside: inside they are worthless."
    )
    refreshable: tuple[StrictStr, ...] = Field(
        (),
        description="Dotted keys of refresh tokens, which stay outside too: with one, the owner's "
        "own program can renew an expired login.",
    )
    required: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys without which the file holds no such login."
    )
    expiry: StrictStr | None = Field(
        None,
        description="The dotted key of the expiry: a number, a date, or a JWT that has one; it is "
        "far ahead inside.",
    )
    now: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys of dates, such as of the last renewal; the present inside."
    )
    account: StrictStr | None = Field(
        None, description="The dotted key of whose login it is, for lists."
    )
    keep: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys that are copied; everything else is left out."
    )
    files: tuple[HomeFileSpec, ...] = Field((), description="More files with this login.")
    env: Mapping[Variable, StrictStr] = Field(
        default_factory=dict,
        description="More variables with this login, with `{key}`; an empty one is left out.",
    )
    model: StrictStr = Field(
        "", description="The model that is used with this login if none is chosen."
    )
    hosts: tuple[Host, ...] = Field(
        min_length=1, description="Where the broker puts the real value in."
    )
    allow: tuple[RequestRuleText, ...] = Field((), description="`METHOD /path*` rules; empty: all.")
    deny: tuple[RequestRuleText, ...] = Field((), description="Rules that win over `allow`.")
    cure: StrictStr = Field(description="The command that logs in again.")
    renew: StrictStr = Field(
        "", description="The command that renews an expired login which has a refresh token."
    )
    upstream: Upstream = Field("", description="A URL that is used instead of `https://HOST`.")

    @model_validator(mode="after")
    def _require_source(self) -> Self:
        name = "variable" if self.kind == "key" else "file"
        if getattr(self, name) is None:
            raise ValueError(f"needs `{name}`: its `kind` is `{self.kind}`")
        return self


class Carry(_Table):
    """A file or directory of the owner that the agent reads too. What looks like a credential is
    removed from the copy.

    The copies are read-only, mode 0400, unless `writable` is set or `files` have the same path:
    those are merged into a file of the agent's own.
    """

    path: OwnerPlace = Field(
        description="On the host: `~/…`, or `${VARIABLE:-~/…}/…`; inside at the same place in HOME."
    )
    only: tuple[StrictStr, ...] = Field(
        (), description="Top-level keys of a JSON or TOML file to keep; empty: the whole file."
    )
    writable: StrictBool = Field(
        default=False,
        description="`true` for a file that the program rewrites, such as its settings: 0600.",
    )


class SessionSpec(_Table):
    """Where the conversation is stored, below the capsule's home."""

    transcript: StrictStr = Field("", description="A glob of JSON lines; the latest is current.")
    format: SessionName = Field("", description="The event format of that file.")


class AdapterSpec(_Table):
    """One agent."""

    title: StrictStr = Field("", description="Its name as its makers write it.")
    program: StrictStr = Field("", description="The command, found on the owner's PATH.")
    install: StrictStr = Field("", description="The command that installs it.")
    version: Words = Field(("--version",), description="Arguments that print the version.")
    commands: CommandLines = Field(default_factory=CommandLines, description="Its command lines.")
    events: StreamName = Field("text", description="The format of its headless output.")
    env: Mapping[Variable, StrictStr] = Field(
        default_factory=dict, description="Variables: quiet switches, no nested sandbox."
    )
    files: tuple[HomeFileSpec, ...] = Field((), description="Files for the private home.")
    carry: tuple[Carry, ...] = Field((), description="The owner's files that are copied.")
    logins: tuple[Login, ...] = Field(
        (), description="Where the owner's login may be; the first one that is found is used."
    )
    upstream: Upstream = Field(
        "", description="A URL that all logins use instead of `https://HOST`."
    )
    hosts: tuple[NetworkRule, ...] = Field(
        (), description="Network rules that it needs besides the hosts of its login."
    )
    session: SessionSpec = Field(
        default_factory=SessionSpec, description="Where its conversation is stored."
    )
    model: StrictStr = Field("", description="The model that is used if none is chosen.")
    needs_login: StrictBool = Field(
        default=True, description="`false` if it works without a login."
    )


def command_line(
    commands: CommandLines, words: Sequence[str], values: Mapping[str, str]
) -> list[str]:
    """The words of one of the `commands` with everything in braces replaced; pure.

    An empty or missing value of `prompt`, `model` or `effort` is none. Without a prompt, words that
    need one are left out, and a `--` before it.
    """
    chosen = {"{model_options}": "model", "{effort_options}": "effort"}
    options = {"model": commands.model, "effort": commands.effort}
    found: list[str] = []
    for word in words:
        if word in chosen:
            name = chosen[word]
            found += [filled(one, values) for one in options[name] if values.get(name)]
        elif values.get("prompt") or "{prompt}" not in word:
            found.append(filled(word, values))
    return found[:-1] if found[-1:] == ["--"] else found


def has_option(commands: CommandLines, words: Sequence[str], name: str) -> bool:
    """Whether a chosen `name`, such as `model`, changes the command line of these `words`; pure."""
    chosen, none = {name: "chosen"}, {name: ""}
    return command_line(commands, words, chosen) != command_line(commands, words, none)


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with the known words in braces replaced, in one pass: what a value contains stays as
    it is. Names without a value stay too.
    """
    known = dict(values)
    if "key" in known:
        known.setdefault("key_tail", known["key"][-_KEY_TAIL:])
    return _BRACES.sub(lambda match: known.get(match[1], match[0]), text)


def place_on_host(place: str, owner: Mapping[str, str]) -> str | None:
    """The absolute path of an `OwnerPlace`, in the owner's environment; None without a HOME."""
    match = _PLACE.fullmatch(place)
    home = owner.get("HOME", "")
    if match is None or not home.startswith("/"):
        return None
    moved = owner.get(match["variable"] or "", "")
    root = moved if moved.startswith("/") else home + (match["default"] or "~")[1:]
    return root + match["rest"]


def place_inside(place: str) -> str:
    """Where an `OwnerPlace` is below the home directory inside."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ValueError("not a place below a home directory")
    return f"{(match['default'] or '~')[1:]}{match['rest']}".lstrip("/")
