from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.model.errors import SpecError
from atoll.model.projectfile import (
    commands,
    parse_project_file,
    parse_user_file,
    project_schema,
)
from atoll.model.tomlkeys import scan_keys

if TYPE_CHECKING:
    from atoll.model.spec import ProjectFile

EXAMPLE = """\
[project]
name = "shop"
base = "main"                       # where new capsules start
carry = ["node_modules", ".venv"]   # ignored paths to carry (default: detected)
never = ["*.pem"]                   # added to the built-in list of secrets

[capsule]
level = "sandbox"
network = "allow"
allow = ["api.anthropic.com:443", "*.example.org"]
limits = { memory = "4G", cpus = 2, pids = 512, disk = "10G", time = "2h" }
setup = ["npm ci"]                  # run once in a new capsule, inside
setup_network = "allow"             # the set-up may have a wider network than the runs
env = { LOG_LEVEL = "debug" }

[tools]
use = "mise"                        # mise | nix | direnv | none (default: detected)

[services.web]
command = "npm run dev"
port = 3000
ready = { http = "/health" }
on_switch = "hot"

[services.db]
use = "postgres"
data = "golden"
on_switch = "none"

[services.cache]
use = "redis"
shared = true

[secrets.STRIPE_KEY]
from = { env = "STRIPE_KEY" }       # env | file | command | keyring
as = { broker = "api.stripe.com" }  # "env" | { file = "…" } | { broker = HOST }
ttl = "8h"

[checks.test]
run = "npm test"
timeout = "10m"

[stages.verified]
checks = ["test"]
[stages.local]
branch = "main"
merge = "squash"
[stages.staging]
run = "./deploy staging"
approve = true
undo = "./deploy staging --previous"
"""


def parse(text: str | bytes) -> ProjectFile:
    return parse_project_file(text.encode() if isinstance(text, str) else text, source="atoll.toml")


def mistakes(text: str | bytes) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return [mistake.render() for mistake in caught.value.mistakes]


def only(text: str | bytes) -> str:
    found = mistakes(text)
    assert len(found) == 1, found
    return found[0].removeprefix("atoll.toml").removeprefix(":")


def test_the_designs_example_is_accepted_whole() -> None:
    file = parse(EXAMPLE)
    assert file.project.carry == ("node_modules", ".venv")
    assert file.capsule.limits.memory_bytes == 4 << 30
    assert file.capsule.limits.cpus == 2.0
    assert file.capsule.limits.time_s == 7200
    assert list(file.services) == ["web", "db", "cache"]
    assert file.services["web"].ready is not None
    assert file.services["web"].ready.http == "/health"
    assert file.secrets["STRIPE_KEY"].form.broker == "api.stripe.com"
    assert file.secrets["STRIPE_KEY"].ttl_s == 8 * 3600
    assert file.checks["test"].timeout_s == 600
    assert list(file.stages) == ["verified", "local", "staging"]
    assert file.stages["staging"].approve


def test_an_empty_file_is_valid_and_asks_for_nothing() -> None:
    file = parse("")
    assert file.model_dump(exclude_unset=True) == {}
    assert commands(file) == ()


def test_the_model_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse("").project.name = "other"  # type: ignore[misc]


def test_given_values_are_dumped_under_the_files_own_keys() -> None:
    given = parse(EXAMPLE).model_dump(by_alias=True, exclude_unset=True)
    assert given["capsule"]["limits"]["memory"] == 4 << 30
    assert given["capsule"]["env"] == {"LOG_LEVEL": "debug"}
    assert "idle" not in given["capsule"]["limits"]
    assert given["secrets"]["STRIPE_KEY"]["from"] == {"env": "STRIPE_KEY"}


def test_all_mistakes_are_reported_at_once() -> None:
    text = """\
[project]
name = "My Shop"
bass = "main"

[capsule]
level = "sandbx"
limits = { memory = "4Q", pids = 0 }
env = { HOME = "/root" }

[services.web]
port = 70000
[services.db]
command = "serve"
needs = ["wev"]

[checks.test]
timeout = "10m"

[stages.verified]
checks = ["tests"]
"""
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.message == "`atoll.toml` has 11 mistakes"
    assert "\n".join(m.render() for m in caught.value.mistakes) == (
        "atoll.toml:2: `project.name`: must be 1 to 40 lower-case letters, digits and inner "
        "hyphens\n"
        "atoll.toml:3: `project.bass`: unknown key; did you mean `base`?\n"
        "atoll.toml:6: `capsule.level`: must be one of `none`, `worktree`, `clone`, `sandbox`, "
        "`container`, `vm`; did you mean `sandbox`?\n"
        "atoll.toml:7: `capsule.limits.memory`: must be a size such as `512M` or `4G`\n"
        "atoll.toml:7: `capsule.limits.pids`: must be a whole number from 1 to 4194304\n"
        "atoll.toml:8: `capsule.env.HOME`: is set by Atoll itself\n"
        "atoll.toml:10: `services.web`: needs exactly one of `command`, `use`; it has none\n"
        "atoll.toml:11: `services.web.port`: must be a whole number from 1 to 65535\n"
        "atoll.toml:14: `services.db.needs[0]`: there is no service `wev`; did you mean `web`?\n"
        "atoll.toml:16: `checks.test.run`: is missing\n"
        "atoll.toml:20: `stages.verified.checks[0]`: there is no check `tests`; did you mean "
        "`test`?"
    )


@pytest.mark.parametrize(
    "rule",
    [
        "api.example.org",
        "api.example.org:443",
        "registry",
        "*.example.org",
        "*.example.co.uk:443",
        "10.0.0.0/8",
        "192.168.1.7:5432",
        "10.1.0.0/16:5432",
        "2001:db8::/32",
        "[2001:db8::1]:443",
        "host:5432",
        "xn--bcher-kva.example",
        "api.example.org:*",
        "*.example.org:*",
        "10.1.0.0/16:*",
        "[2001:db8::1]:*",
    ],
)
def test_allow_takes_named_destinations(rule: str) -> None:
    assert parse(f'capsule.allow = ["{rule}"]').capsule.allow == (rule,)


def test_allow_folds_case() -> None:
    assert parse('capsule.allow = ["API.Example.ORG"]').capsule.allow == ("api.example.org",)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "host:*",
        "*:*",
        "*:443",
        "example.org:**",
        "example.org:4*",
        "2001:db8::1:*",
        "*",
        "*.com",
        "*.co.uk",
        "*.com.au",
        "*.*.org",
        "a.*.org",
        "ex*.org",
        "host",
        "host:0",
        "host:65536",
        "host:http",
        "localhost:80",
        "web.localhost",
        "*.localhost",
        "127.0.0.1",
        "127.0.0.0/16",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0.0.0.0",
        "0.0.0.0/0",
        "128.0.0.0/1",
        "10.1/16",
        "10.0.0.1/8",
        "169.254.169.254",
        "[::1]:80",
        "::1",
        "::ffff:127.0.0.1",
        "::/0",
        "fe80::1",
        "bücher.example",
        "a b.example",
        "https://example.org",
        "user@example.org",
        "example.org/path",
        "example.org.",
        "-a.example",
    ],
)
def test_allow_refuses_what_is_wide_or_not_a_destination(rule: str) -> None:
    assert only(f'capsule.allow = ["{rule}"]').startswith("1: `capsule.allow[0]`: ")


@pytest.mark.parametrize(
    "path", ["../x", "/etc", "a/../b", ".git", "a/.GIT/x", "~/x", "", ".", "./"]
)
def test_carry_stays_inside_the_project(path: str) -> None:
    assert only(f'project.carry = ["{path}"]').startswith("1: `project.carry[0]`: must")


@pytest.mark.parametrize(
    "ref",
    ["-x", "a..b", "a b", "a~1", "", "/a", "a/", "a.lock", ".a", "a\\u0007", "a:b", "@", "a@{1}"],
)
def test_refs_follow_gits_rules(ref: str) -> None:
    assert "`project.base`: must be the name" in only(f'project.base = "{ref}"')
    assert "`stages.a.branch`: must be the name" in only(f'stages.a.branch = "{ref}"')


@pytest.mark.parametrize("name", ["HOME", "TMPDIR", "ATOLL_X", "1A", "A-B", "A B", ""])
def test_variables_that_are_not_the_projects_to_set(name: str) -> None:
    for where in ("capsule.env", "services.web.env"):
        text = f'services.web.command = "x"\n{where}."{name}" = "x"'
        assert f"{where}." in only(text)
    assert "`secrets." in only(f'secrets."{name}".from.env = "X"')


@pytest.mark.parametrize("name", ["Web", "a_b", "-a", "a-", "3000", "a.b", "", "x" * 41, "é"])
@pytest.mark.parametrize("table", ["services.{}.command", "checks.{}.run", "stages.{}.run"])
def test_names_are_labels(table: str, name: str) -> None:
    assert "is not a usable name" in only(table.format(f'"{name}"') + ' = "x"')


@pytest.mark.parametrize(
    "escape", ["\\u0000", "\\u001b[2J", "\\r", "\\u009b", "\\u202e", "\\u007f"]
)
def test_no_text_may_hide_what_it_says(escape: str) -> None:
    for key in ("checks.a.run", "capsule.env.A", "services.a.command", "secrets.A.from.command"):
        message = only(f'{key} = "a{escape}"')
        assert message == f"1: `{key}`: must not contain control characters"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capsule.limits.memory = 0", "must be more than zero"),
        ('capsule.limits.memory = "4"', "must be at least `1M`"),
        ("capsule.limits.cpus = nan", "must be a number from 0.01 to 1024"),
        ("capsule.limits.cpus = true", "must be a number from 0.01 to 1024"),
        ("capsule.limits.time = inf", "must be at most `366d`"),
        ("capsule.limits.time = nan", "must be more than zero"),
        ('capsule.limits.time = "-5s"', "must be more than zero"),
        ("capsule.limits.pids = 1.5", "must be a whole number from 1 to 4194304"),
        ("capsule.limits.pids = " + "9" * 4000, "must be a whole number from 1 to 4194304"),
        ("capsule.setup = 'npm ci'", "must be a list"),
        ("capsule.env.A = 1", "must be text in quotes"),
        ("checks.a.run = ' '", "must not be empty"),
        (
            "tools.use = 'misee'",
            "must be one of `mise`, `nix`, `direnv`, `none`; did you mean `mise`?",
        ),
        ("project = 1", "must be a table"),
        ("services = [1]", "must be a table"),
        (
            "\n".join(f"services.s{number}.command = 'x'" for number in range(65)),
            "must have at most 64 entries",
        ),
        (
            "project.never = ['!*.pem']",
            "must not start with `!`: patterns can only be added to the list",
        ),
        ("services.a = {command='x', shared='yes'}", "must be `true` or `false`"),
        (
            "services.a = {command='x', use='redis'}",
            "needs exactly one of `command`, `use`; it has 2",
        ),
        (
            "services.a = {command='x', ready={}}",
            "needs exactly one of `http`, `tcp`, `command`, `log`; it has none",
        ),
        ("services.a = {command='x', ready={http='/'}}", "needs the service's `port`"),
        ("services.a = {command='x', needs=['a']}", "has a dependency cycle: `a` → `a`"),
        ("secrets.A = {}", "is missing"),
        (
            "secrets.A = {from={}}",
            "needs exactly one of `env`, `file`, `command`, `keyring`; it has none",
        ),
        (
            "secrets.A = {from={env='A'}, as={}}",
            "needs exactly one of `file`, `broker`; it has none",
        ),
        (
            "secrets.A = {from={env='A'}, as='file'}",
            'must be `"env"`, `{ file = "…" }` or `{ broker = "HOST" }`',
        ),
        (
            "secrets.A = {from={env='A'}, as={broker='*.example.org'}}",
            "must be a host name such as `api.example.org`",
        ),
        ("secrets.A = {from={file='../x'}}", "must be the path of a file, without `..`"),
        (
            "stages.a = {merge='patch', branch='main'}",
            "`patch` changes the working tree and no branch",
        ),
        ("stages.a.soak = '5m'", "needs a `health` command that has to hold"),
        ("stages.a.undo = 'x'", "needs a `run` to undo"),
    ],
)
def test_each_mistake_has_its_words(text: str, message: str) -> None:
    assert only(text).partition("`: ")[2] == message


def test_secrets_default_to_a_variable() -> None:
    for form in ("", ", as='env'"):
        assert parse("secrets.A = {from={env='A'}" + form + "}").secrets["A"].form.text == "env"


def test_circles_among_services_are_shown_in_the_order_of_needs() -> None:
    chain = "\n".join(
        f"[services.{name}]\ncommand='x'\nneeds=['{need}']" for name, need in ("ab", "bc", "ca")
    )
    assert only(chain) == "3: `services.a.needs`: has a dependency cycle: `a` → `b` → `c` → `a`"


def test_syntax_errors_have_their_line() -> None:
    assert only("[project]\nname = shop\n") == "2: not valid TOML: invalid value, at column 8"
    assert only("[a]\n[a]") == "2: not valid TOML: cannot declare `a` twice, at column 3"
    assert only("[project]\nname = [\n\n") == "2: not valid TOML: invalid value"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a\n" * 5_000_000, " is larger than 1 MiB"),
        (b"[project]\nname = '\xff'", "2: is not UTF-8"),
        (b"a = " + b"[" * 100_000, "1: is nested too deep"),
        (b"a = " + b"{a=" * 100_000, "1: is nested too deep"),
        (b"\n" + b".".join([b"a"] * 200_000) + b" = 1", "2: is nested too deep"),
        (b"[" + b".".join([b"a"] * 200_000) + b"]\n" + b"b=1\n" * 1000, "1: is nested too deep"),
        (b"a = " + b"9" * 10_000, " contains a number that is too large"),
        (b'"\\u001b[31m`x`" = 1', "1: `\"\\x1b[31m'x'\"`: unknown key"),
        (b'"\\u202ex\\n" = 1', '1: `"\\u202ex\\n"`: unknown key'),
    ],
)
def test_hostile_files_are_refused_in_one_line(text: bytes, message: str) -> None:
    assert only(text).removeprefix(":") == message


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"k{number} = 1" for number in range(50_000)),
        '"\\"' * 200_000,
        '"""' + '""a' * 300_000,
        "'" * 1_000_000,
        "[services.a]\nneeds = [" + "'b'," * 200_000 + "]",
    ],
)
def test_hostile_files_take_bounded_time_and_space(text: str) -> None:
    started = time.monotonic()
    assert len(mistakes(text)) <= 101
    assert time.monotonic() - started < 30


def test_what_is_not_shown_is_counted() -> None:
    with pytest.raises(SpecError) as caught:
        parse("\n".join(f"k{number} = 1" for number in range(250)))
    assert caught.value.message == "`atoll.toml` has 250 mistakes"
    assert caught.value.mistakes[-1].message == "150 more mistakes are not shown"


def test_the_user_file_has_only_what_is_the_users() -> None:
    text = b'[capsule]\nlevel = "clone"\nlimits = { time = "1h" }\n[tools]\nuse = "nix"\n'
    file = parse_user_file(text, source="config.toml")
    assert (file.capsule.level, file.tools.use) == ("clone", "nix")
    text = b'[capsule]\nsetup = ["x"]\nlevl = "clone"\n[checks.a]\nrun = "x"\n'
    with pytest.raises(SpecError) as caught:
        parse_user_file(text, source="config.toml")
    assert [m.render() for m in caught.value.mistakes] == [
        "config.toml:2: `capsule.setup`: belongs in a project's own `atoll.toml`",
        "config.toml:3: `capsule.levl`: unknown key; did you mean `level`?",
        "config.toml:4: `checks`: belongs in a project's own `atoll.toml`",
    ]


def test_everything_that_needs_approval_is_claimed() -> None:
    more = """
    [services.api]
    command = "serve"
    ready = { command = "probe" }
    env = { LD_PRELOAD = "x.so" }
    [secrets.A]
    from = { command = "pass show a" }
    """
    claimed = {claim.key: claim.text for claim in commands(parse(EXAMPLE + more))}
    assert claimed == {
        "project.carry[0]": "node_modules",
        "project.carry[1]": ".venv",
        "capsule.setup[0]": "npm ci",
        "capsule.level": "sandbox",
        "capsule.network": "allow",
        "capsule.allow[0]": "api.anthropic.com:443",
        "capsule.allow[1]": "*.example.org",
        "capsule.setup_network": "allow",
        "capsule.env.LOG_LEVEL": "debug",
        "capsule.limits.memory": "4G",
        "capsule.limits.cpus": "2",
        "capsule.limits.pids": "512",
        "capsule.limits.disk": "10G",
        "capsule.limits.time": "2h",
        "tools.use": "mise",
        "services.web.command": "npm run dev",
        "services.db.use": "postgres",
        "services.cache.use": "redis",
        "services.cache.shared": "true",
        "services.api.command": "serve",
        "services.api.ready.command": "probe",
        "services.api.env.LD_PRELOAD": "x.so",
        "secrets.STRIPE_KEY.from.env": "STRIPE_KEY",
        "secrets.STRIPE_KEY.as": "broker api.stripe.com",
        "secrets.A.from.command": "pass show a",
        "secrets.A.as": "env",
        "checks.test.run": "npm test",
        "stages.local.branch": "main",
        "stages.staging.run": "./deploy staging",
        "stages.staging.undo": "./deploy staging --previous",
    }


def test_the_schema_describes_every_key() -> None:
    schema = project_schema()
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert schema["title"] == "atoll.toml"
    assert "$defs" not in schema
    definitions = schema["definitions"]
    assert isinstance(definitions, dict)
    for name, definition in {"": schema, **definitions}.items():
        assert definition["description"], name
        assert definition["additionalProperties"] is False, name
        for key, field in definition["properties"].items():
            assert "$ref" in field or field["description"], (name, key)
            assert "null" not in str(field), (name, key)
    assert set(definitions["Secret"]["properties"]) == {"from", "as", "ttl"}


@given(st.text(alphabet=st.sampled_from("abc.=[]{}\"'\\\n, #1_")))
def test_the_scan_takes_any_text(text: str) -> None:
    lines = [line for _, line in scan_keys(text)]
    assert lines == sorted(lines)


def test_the_scan_finds_keys_wherever_they_stand() -> None:
    text = "a.'b' = 1\n[t] # [no]\n\"k\" = [\n 1,\n {x = '''\n]'''}, # c\n]\ny = 2\n"
    assert dict(scan_keys(text)) == {
        ("a", "b"): 1,
        ("t",): 2,
        ("t", "k"): 3,
        ("t", "k", 0): 4,
        ("t", "k", 1): 5,
        ("t", "k", 1, "x"): 5,
        ("t", "y"): 8,
    }


def _accepts_or_explains(text: bytes) -> None:
    try:
        commands(parse_project_file(text, source="atoll.toml"))
    except SpecError as error:
        found = error.mistakes
    else:
        return
    assert found
    for mistake in found:
        assert mistake.render().isprintable()
        assert mistake.line is None or mistake.line >= 1


@settings(deadline=None)
@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_accepted_or_explained(text: str) -> None:
    _accepts_or_explains(text.encode("utf-8", "surrogatepass"))


WORDS = st.sampled_from(
    [*EXAMPLE.split(), "[", "]", "{", "}", "=", ".", "\n", "nan", "-1", '"\\u0000"']
)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=40), st.sampled_from(["", " ", "\n"]))
def test_any_mixture_of_its_own_words_is_accepted_or_explained(
    words: list[str], between: str
) -> None:
    _accepts_or_explains(between.join(words).encode())


SCALARS = ["1", "true", "nan", "-0.0", '"x"', '""', "1979-05-27", '"\\u001b"']
VALUES = SCALARS + [form % value for value in SCALARS for form in ("[%s]", "[[%s]]", "{ a = %s }")]


@settings(deadline=None)
@given(st.integers(0, len(EXAMPLE.splitlines()) - 1), st.sampled_from(VALUES))
def test_any_line_may_be_changed(place: int, value: str) -> None:
    lines = EXAMPLE.splitlines()
    lines[place] = lines[place].partition("=")[0] + " = " + value
    _accepts_or_explains("\n".join(lines).encode())
