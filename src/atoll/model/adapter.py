"""What an adapter file says about an agent's command line program.

One adapter is one TOML file (`drivers/agent/adapters/NAME.toml`), or a table `[agents.NAME]` in the
user's settings. Lists are command lines; in a word, `{prompt}`, `{model}`, `{effort}`, `{home}`,
`{workspace}` and `{session}` are replaced. A word is never split and never passes a shell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr
from pydantic.functional_validators import AfterValidator

from atoll.model import rules

Words = tuple[StrictStr, ...]
Variable = Annotated[StrictStr, AfterValidator(rules.require_variable)]
Host = Annotated[StrictStr, AfterValidator(rules.require_host)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommandLines(_Table):
    """How the program is started for a new task, for the next message, and on the screen."""

    headless: Words = Field((), description="Answers one prompt and exits.")
    headless_resume: Words = Field(
        (), description="Continues the latest conversation with one more prompt and exits."
    )
    interactive: Words = Field((), description="Starts the program's own screen.")
    interactive_resume: Words = Field((), description="Opens it on the latest conversation.")
    prompt_by: Literal["argument", "stdin"] = Field(
        "argument", description="How a headless command gets the prompt."
    )
    model: Words = Field((), description="Added when a model is chosen.")
    effort: Words = Field((), description="Added when an effort is chosen.")
    before: tuple[Words, ...] = Field(
        (), description="Commands to run once in a new capsule, such as a login."
    )


class Login(_Table):
    """One way in which the program finds the owner's login on the host.

    `key`: a variable, also read from the owner's environment and from the vault. `json`: a file
    whose values at `tokens` are replaced by placeholders.
    """

    kind: Literal["key", "json"]
    title: StrictStr = Field(description="What people call it: API key, subscription.")
    variable: Variable | None = Field(None, description="The variable that carries it.")
    prefix: StrictStr = Field("", description="What a well-formed value begins with.")
    file: StrictStr | None = Field(None, description="The file on the host, with `~`.")
    inside: StrictStr | None = Field(None, description="The file inside; default: the same.")
    tokens: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys of the values that are secret; JWTs keep their claims."
    )
    required: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys without which the file holds no login."
    )
    expiry: StrictStr | None = Field(
        None, description="The dotted key of the expiry, as a number or a date; replaced inside."
    )
    refreshable: tuple[StrictStr, ...] = Field(
        (), description="Dotted keys of refresh tokens: with one, an expired login can be renewed."
    )
    drop: tuple[StrictStr, ...] = Field((), description="Dotted keys that are left out inside.")
    env: Mapping[Variable, StrictStr] = Field(
        default_factory=dict, description="More variables with this login; not secret."
    )
    hosts: tuple[Host, ...] = Field(description="Where the broker puts the real value in.")
    allow: tuple[StrictStr, ...] = Field((), description="`METHOD /path*` rules; empty: all.")
    deny: tuple[StrictStr, ...] = Field((), description="Rules that win over `allow`.")
    cure: StrictStr = Field(description="The command that logs in again.")
    upstream: StrictStr = Field("", description="A URL that is used instead of `https://HOST`.")


class HomeFileSpec(_Table):
    """A file that is written into the capsule's private home before the agent starts."""

    path: StrictStr = Field(description="Below the home directory.")
    content: StrictStr = Field(description="With `{home}`, `{workspace}` and `{key_tail}`.")


class Carry(_Table):
    """A file or directory of the owner that the agent reads too: copied, never with credentials."""

    path: StrictStr = Field(description="On the host, with `~`; inside at the same place in HOME.")
    only: tuple[StrictStr, ...] = Field(
        (), description="Top-level keys of a JSON or TOML file to keep; empty: the whole file."
    )


class SessionSpec(_Table):
    """Where the conversation is stored, below the capsule's home."""

    transcript: StrictStr = Field("", description="A glob of JSON lines; the latest is current.")
    format: StrictStr = Field("", description="The event format of that file.")
    status: StrictStr = Field("", description="A glob of JSON files with a `status` key.")


class AdapterSpec(_Table):
    """One agent."""

    title: StrictStr = Field("", description="Its name as its makers write it.")
    program: StrictStr = Field("", description="The command, found on the owner's PATH.")
    install: StrictStr = Field("", description="The command that installs it.")
    version: Words = Field(("--version",), description="Arguments that print the version.")
    commands: CommandLines = Field(default_factory=CommandLines)
    events: StrictStr = Field("text", description="The format of its headless output.")
    env: Mapping[Variable, StrictStr] = Field(
        default_factory=dict, description="Variables: quiet switches, no nested sandbox."
    )
    files: tuple[HomeFileSpec, ...] = ()
    carry: tuple[Carry, ...] = ()
    logins: tuple[Login, ...] = ()
    hosts: tuple[StrictStr, ...] = Field(
        (), description="Network rules that it needs besides the hosts of its login."
    )
    session: SessionSpec = Field(default_factory=SessionSpec)
    model: StrictStr = Field("", description="The model that is used if none is chosen.")
    needs_login: StrictBool = Field(default=True, description="Whether it works without one.")
