"""The models of the project file and the user's settings file.

Every field has a description: the JSON schema and the reference page are generated from them.
Relations between fields are checked by `atoll.model.projectfile`, the only place that builds these
models, because all mistakes are reported at once and pydantic stops at the first wrong table. None
means "not given"; the engine decides defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import AfterValidator

from atoll.model import request_rules, rules, units
from atoll.model.adapter import AdapterSpec
from atoll.model.check import TIMEOUT_S, CheckSpec
from atoll.model.enclosure import LIMITS_BY_FIELD, SETTABLE_LIMITS, LimitKind
from atoll.model.limits import parse_limit
from atoll.model.promotion import STAGE_S, StageSpec
from atoll.model.secret import (
    BrokerScope,
    DeclaredSecret,
    Delivery,
    DeliveryKind,
    OriginKind,
    SecretOrigin,
)


def _duration_s(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return units.require_duration_s(value)
    return units.parse_duration_s(value if isinstance(value, str) else "")


def _limit(kind: LimitKind, value: object) -> float:
    """A limit as a file gives it: text, or a number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    lowest, highest = kind.lowest, kind.highest
    match kind.unit:
        case "size" if is_number and isinstance(value, int):
            return units.require_size_bytes(value, minimum_bytes=int(lowest))
        case "size":
            return parse_limit(kind, value if isinstance(value, str) else "")
        case "duration":
            return _duration_s(value)
        case "cpus":
            number = value if is_number and isinstance(value, (int, float)) else 0
            return units.require_number(number, lowest=lowest, highest=highest)
        case _:
            return rules.require_whole(value, lowest=int(lowest), highest=int(highest))


def _tokens(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return units.require_tokens(value)
    return units.parse_tokens(value if isinstance(value, str) else "")


def _usd(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9:
        return float(value)
    raise ValueError("must be a number of US dollars such as `5` or `0.25`")


def _retries(value: object) -> int:
    return rules.require_whole(value, lowest=0, highest=10)


def _turns(value: object) -> int:
    return rules.require_whole(value, lowest=1, highest=10**9)


_TOKENS_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?[kKmM]?$"},
        {"type": "integer", "minimum": 1},
    ],
    "examples": ["2M"],
}
_SIZE_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?[KMGTkmgt]?(i?B)?$"},
        {"type": "integer", "minimum": 1},
    ]
}
_DURATION_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string", "pattern": r"^[0-9.]+(d|h|ms?|s)?([0-9.]+(h|ms?|s))*$"},
        {"type": "number", "exclusiveMinimum": 0},
    ]
}


def _limit_schema(kind: LimitKind) -> dict[str, JsonValue]:
    if kind.unit in ("size", "duration"):
        return _SIZE_SCHEMA if kind.unit == "size" else _DURATION_SCHEMA
    number = "number" if kind.unit == "cpus" else "integer"
    return {"type": number, "minimum": kind.lowest, "maximum": kind.highest}


Text = Annotated[StrictStr, AfterValidator(rules.require_text)]
Value = Annotated[StrictStr, AfterValidator(rules.require_plain)]
Label = Annotated[StrictStr, AfterValidator(rules.require_label)]
Variable = Annotated[StrictStr, AfterValidator(rules.require_variable)]
Ref = Annotated[StrictStr, AfterValidator(rules.require_ref)]
Branch = Annotated[StrictStr, AfterValidator(rules.require_branch)]
SecretPath = Annotated[StrictStr, AfterValidator(rules.require_secret_path)]
HomeFilePath = Annotated[StrictStr, AfterValidator(rules.require_inside_file)]
RequestRuleText = Annotated[StrictStr, AfterValidator(request_rules.require_rule)]
Repository = Annotated[StrictStr, AfterValidator(request_rules.parse_repository)]
Port = Annotated[
    int,
    BeforeValidator(rules.require_port),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 65_535}),
]
Duration = Annotated[float, BeforeValidator(_duration_s), WithJsonSchema(_DURATION_SCHEMA)]
Tokens = Annotated[int, BeforeValidator(_tokens), WithJsonSchema(_TOKENS_SCHEMA)]
Usd = Annotated[
    float, BeforeValidator(_usd), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 10**9})
]
Turns = Annotated[
    int,
    BeforeValidator(_turns),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 10**9}),
]
ModelPrefix = Annotated[StrictStr, AfterValidator(rules.require_model_prefix)]

Level = Literal["none", "worktree", "clone", "sandbox", "container", "vm"]
NetworkMode = Literal["none", "allow", "open"]
ToolManager = Literal["mise", "nix", "direnv", "none"]
ServiceKind = Literal["postgres", "redis", "mariadb", "compose"]
SwitchPolicy = Literal["none", "hot", "restart", "rebuild"]
RestartPolicy = Literal["never", "on-failure", "always"]
MergeWay = Literal["squash", "merge", "rebase", "ff", "patch"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProjectSettings(_Table):
    """What the project is and where capsules start."""

    name: Annotated[StrictStr, AfterValidator(rules.require_project_name)] | None = Field(
        None, description="The project's name in lists and host names; default: its directory's."
    )
    base: Ref | None = Field(
        None, description="The branch, tag or commit that new capsules start from."
    )
    carry: tuple[Annotated[StrictStr, AfterValidator(rules.require_inner_path)], ...] | None = (
        Field(None, description="Ignored paths to carry into capsules.")
    )
    never: tuple[Annotated[StrictStr, AfterValidator(rules.require_secret_pattern)], ...] = Field(
        (), description="Patterns added to the built-in list of files that are never carried."
    )


def _declared(name: str) -> Any:
    """The field of a limit; see `LimitsSpec`."""
    kind = SETTABLE_LIMITS[name]

    def describe(schema: dict[str, Any]) -> None:
        schema.pop("type")
        schema.update(_limit_schema(kind))

    alias = None if kind.name == kind.field else kind.name
    return Field(None, alias=alias, description=kind.description, json_schema_extra=describe)


class LimitsSpec(_Table):
    """How much a capsule may use."""

    memory_bytes: int | None = _declared("memory")
    cpus: float | None = _declared("cpus")
    pids: int | None = _declared("pids")
    disk_bytes: int | None = _declared("disk")
    files: int | None = _declared("files")
    time_s: float | None = _declared("time")
    idle_s: float | None = _declared("idle")
    output_bytes: int | None = _declared("output")

    @field_validator("*", mode="before")
    @classmethod
    def _require(cls, value: object, info: ValidationInfo) -> float:
        return _limit(LIMITS_BY_FIELD[str(info.field_name)], value)


class UserCapsule(_Table):
    """How a user's capsules are made where the project does not say."""

    level: Level | None = Field(None, description="The isolation level.")
    network: NetworkMode | None = Field(
        None, description="`none`: loopback only; `allow`: the named destinations; `open`: all."
    )
    allow: tuple[Annotated[StrictStr, AfterValidator(rules.require_allow_rule)], ...] | None = (
        Field(
            None,
            description="Destinations: `host[:port]`, `*.suffix`, an address, a full CIDR, or "
            "`host:PORT` for a port on the owner's own loopback. Without a port: 80 and 443; "
            "`*` means all ports.",
        )
    )
    limits: LimitsSpec = Field(
        default_factory=LimitsSpec, description="How much a capsule may use."
    )
    setup_network: NetworkMode | None = Field(
        None, description="The network of the set-up, when it differs from that of the runs."
    )
    env: Mapping[Variable, Value] = Field(
        default_factory=dict, description="Variables for everything that runs inside."
    )


class CapsuleSettings(UserCapsule):
    """How this project's capsules are made."""

    setup: tuple[Text, ...] = Field(
        (), description="Shell commands that are run once, in order, inside a new capsule."
    )


class Tools(_Table):
    """Where compilers and interpreters come from."""

    use: ToolManager | None = Field(None, description="The tool manager to enter before running.")


class Ready(_Table):
    """The readiness check of a service: exactly one of `http`, `tcp`, `command` and `log`."""

    http: Annotated[StrictStr, AfterValidator(rules.require_url_path)] | None = Field(
        None, description="A path on the service's port that answers with a good status."
    )
    tcp: Port | None = Field(None, description="A port that accepts connections.")
    command: Text | None = Field(None, description="A shell command that succeeds.")
    log: Text | None = Field(None, description="A piece of text that appears in the output.")
    timeout_s: Duration | None = Field(
        None, alias="timeout", description="How long to wait before the start has failed."
    )


class Service(_Table):
    """A process that is kept up: exactly one of `command` and `use`."""

    command: Text | None = Field(None, description="The shell command that serves.")
    use: ServiceKind | None = Field(None, description="A service that Atoll knows how to run.")
    port: Port | None = Field(
        None, description="The port it listens on, as everything inside knows it."
    )
    ready: Ready | None = Field(None, description="The readiness check.")
    on_switch: SwitchPolicy = Field("none", description="What a branch switch does to it.")
    restart: RestartPolicy = Field("on-failure", description="When it is restarted automatically.")
    data: Label | None = Field(None, description="The data set that it starts with.")
    shared: StrictBool = Field(
        default=False, description="Run one instance per project, available to all capsules."
    )
    needs: tuple[Label, ...] = Field((), description="Services that must be up before it.")
    env: Mapping[Variable, Value] = Field(
        default_factory=dict, description="Variables for this service only."
    )


class SecretSource(_Table):
    """The source of a secret's value: exactly one of these."""

    env: Annotated[StrictStr, AfterValidator(rules.require_source_variable)] | None = Field(
        None, description="A variable of the owner's environment."
    )
    file: SecretPath | None = Field(None, description="A file of the owner.")
    command: Text | None = Field(None, description="A shell command that prints it.")
    keyring: Annotated[StrictStr, AfterValidator(rules.require_keyring_entry)] | None = Field(
        None, description="An entry of the owner's keyring: `service/user`."
    )

    @property
    def origin(self) -> SecretOrigin:
        [(name, text)] = self.model_dump(exclude_none=True).items()
        return SecretOrigin(OriginKind(name), text)


_FORM_CHOICES = '`"env"`, `{ file = "…" }` or `{ broker = "HOST" }`'


class SecretForm(_Table):
    """How a capsule gets a secret; neither `file` nor `broker` means a variable."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema.update(
            {
                "anyOf": [
                    {"const": "env"},
                    {"type": "object", "required": ["file"], "maxProperties": 1},
                    {"type": "object", "required": ["broker"], "not": {"required": ["file"]}},
                ],
                "type": ["string", "object"],
            }
        )
    )

    file: HomeFilePath | None = Field(
        None, description="A file inside the capsule that holds it: a path below `~/`."
    )
    broker: Annotated[StrictStr, AfterValidator(rules.require_host)] | None = Field(
        None, description="The one host towards which a placeholder is replaced by the value."
    )
    allow: tuple[RequestRuleText, ...] = Field(
        (), description="With `broker`: the requests that may use it, as `METHOD /path*`."
    )
    deny: tuple[RequestRuleText, ...] = Field(
        (), description="With `broker`: requests that may not; wins over `allow`."
    )
    repository: Repository | None = Field(
        None, description="With `broker`: only git requests for this repository, `owner/name`."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        if value == "env":
            return {}
        if not isinstance(value, Mapping):
            raise ValueError(f"must be {_FORM_CHOICES}")  # noqa: TRY004 - pydantic wants ValueError
        return value

    @property
    def text(self) -> str:
        if self.broker is None:
            return "env" if self.file is None else f"file {self.file}"
        words = [f"broker {self.broker}"]
        words += [f"repository {self.repository}"] if self.repository else []
        words += [f"allow {', '.join(self.allow)}"] if self.allow else []
        words += [f"deny {', '.join(self.deny)}"] if self.deny else []
        return "; ".join(words)

    @property
    def delivery(self) -> Delivery:
        if self.broker is not None:
            scope = BrokerScope((self.broker,), self.allow, self.deny, "", self.repository or "")
            return Delivery(DeliveryKind.BROKER, broker=scope)
        if self.file is not None:
            return Delivery(DeliveryKind.FILE, self.file)
        return Delivery(DeliveryKind.VARIABLE)


class Secret(_Table):
    """A secret, named by the variable that carries it."""

    source: SecretSource = Field(alias="from", description="The source of the value.")
    form: SecretForm = Field(
        default_factory=SecretForm, alias="as", description=f"{_FORM_CHOICES}."
    )
    ttl_s: Duration | None = Field(
        None, alias="ttl", description="How long a grant lasts, such as `8h`."
    )

    @property
    def declared(self) -> DeclaredSecret:
        return DeclaredSecret(self.source.origin, self.form.delivery, self.ttl_s)


class Check(_Table):
    """A command whose exit status says whether a workspace is good."""

    run: Text = Field(description="The shell command.")
    timeout_s: Duration | None = Field(
        None, alias="timeout", description="How long it may take before it has failed."
    )
    retries: Annotated[int, BeforeValidator(_retries)] = Field(
        0,
        description="How often it is run again after a failure; a pass after a failure is `flaky`.",
        json_schema_extra={"minimum": 0, "maximum": 10},
    )
    figures: StrictBool = Field(
        default=False,
        description="Read figures from its output: lines `name value [unit] [lower|higher]`, or a "
        "JSON object.",
    )
    junit: Annotated[StrictStr, AfterValidator(rules.require_inner_path)] | None = Field(
        None, description="The JUnit XML file that it writes, as a path in the project."
    )
    needs: tuple[Label, ...] = Field((), description="Services that must be up.")

    def declared(self, name: str) -> CheckSpec:
        return CheckSpec(
            name=name,
            command=self.run,
            timeout_s=TIMEOUT_S if self.timeout_s is None else self.timeout_s,
            retries=self.retries,
            has_figures=self.figures,
            junit=self.junit,
            needs=self.needs,
        )


class Stage(_Table):
    """One step of promotion."""

    checks: tuple[Label, ...] = Field((), description="The checks that must pass.")
    branch: Branch | None = Field(None, description="The branch that the work lands on.")
    merge: MergeWay | None = Field(None, description="How the work lands on the branch.")
    run: Text | None = Field(None, description="A shell command that performs the step.")
    approve: StrictBool = Field(default=False, description="Wait for a person's approval first.")
    undo: Text | None = Field(None, description="A shell command that undoes the step.")
    timeout_s: Duration | None = Field(
        None, alias="timeout", description="How long `run` and `undo` may each take."
    )
    soak_s: Duration | None = Field(
        None, alias="soak", description="How long `health` must hold before the stage has passed."
    )
    health: Text | None = Field(
        None, description="A shell command that succeeds while the stage is healthy."
    )

    def declared(self, name: str) -> StageSpec:
        return StageSpec(
            name=name,
            checks=self.checks,
            branch=self.branch,
            merge=self.merge,
            run=self.run,
            approve=self.approve,
            undo=self.undo,
            timeout_s=STAGE_S if self.timeout_s is None else self.timeout_s,
            soak_s=self.soak_s or 0.0,
            health=self.health,
        )


class AgentSettings(_Table):
    """How a user's agents are started."""

    default: Label | None = Field(
        None, description="The agent that `atoll spawn` uses when none is named."
    )


class NotifySettings(_Table):
    """How the owner hears of an agent that wants a person, or that is done."""

    command: Text | None = Field(
        None, description="A shell command; it gets the event as JSON on standard input."
    )
    webhook: Annotated[StrictStr, AfterValidator(rules.require_webhook)] | None = Field(
        None, description="A URL that the event is posted to as JSON."
    )
    desktop: StrictBool = Field(default=False, description="Show a desktop notification.")
    bell: StrictBool = Field(
        default=True, description="Ring the terminal's bell in `agents --watch` and `watch`."
    )
    events: tuple[Annotated[StrictStr, AfterValidator(rules.require_agent_event)], ...] = Field(
        ("agent.waiting", "agent.finished", "agent.failed", "agent.over-budget", "agent.lost"),
        description="The changes of state to notify of: `agent.` and a state.",
    )


class BudgetSettings(_Table):
    """What the agents of one project may use together. What its capsules used counts until they
    are removed.
    """

    time_s: Duration | None = Field(
        None, alias="time", description="The sum of the times that agents ran, such as `8h`."
    )
    turns: Turns | None = Field(None, description="How often models may answer.")
    tokens: Tokens | None = Field(
        None, description="Tokens of input and output, such as `2M`; cached ones count."
    )
    cost: Usd | None = Field(None, description="US dollars, by the prices that Atoll knows.")


class PriceSettings(_Table):
    """What a model costs, in US dollars per million tokens."""

    input: Usd = Field(description="US dollars per million tokens of input.")
    output: Usd = Field(description="Likewise of output.")
    cache_read: Usd | None = Field(
        None, description="Of input from the vendor's cache; without it as other input."
    )
    cache_write: Usd | None = Field(
        None, description="Of input that is written to the cache; likewise."
    )


class UserFile(_Table):
    """The user's own settings, for all projects."""

    agent: AgentSettings = Field(
        default_factory=AgentSettings, description="How agents are started."
    )
    agents: Mapping[Label, AdapterSpec] = Field(
        default_factory=dict,
        max_length=64,
        description="Agents, by name: changes of a built-in adapter, or whole ones.",
    )

    notify: NotifySettings = Field(
        default_factory=NotifySettings, description="Notifications about agents."
    )
    budget: BudgetSettings = Field(
        default_factory=BudgetSettings, description="What the agents of each project may use."
    )
    prices: Mapping[ModelPrefix, PriceSettings] = Field(
        default_factory=dict,
        max_length=256,
        description="Prices of models, by the beginning of their names; the longest one counts.",
    )
    capsule: UserCapsule = Field(default_factory=UserCapsule, description="How capsules are made.")
    tools: Tools = Field(
        default_factory=Tools, description="Where compilers and interpreters come from."
    )


class ProjectFile(_Table):
    """`atoll.toml`: what a project asks of Atoll. All of it is optional."""

    project: ProjectSettings = Field(
        default_factory=ProjectSettings, description="What the project is."
    )
    capsule: CapsuleSettings = Field(
        default_factory=CapsuleSettings, description="How its capsules are made."
    )
    tools: Tools = Field(
        default_factory=Tools, description="Where compilers and interpreters come from."
    )
    # Bounded, since each of them leases a port for each capsule.
    services: Mapping[Label, Service] = Field(
        default_factory=dict, max_length=64, description="Long-running processes, by name."
    )
    secrets: Mapping[Variable, Secret] = Field(
        default_factory=dict, description="Secrets that capsules may be granted, by variable."
    )
    checks: Mapping[Label, Check] = Field(
        default_factory=dict, description="Commands that test a workspace, by name."
    )
    stages: Mapping[Label, Stage] = Field(
        default_factory=dict, description="Promotion steps, in order."
    )
