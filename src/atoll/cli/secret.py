"""`atoll secret`: values that capsules may use, and never see in the open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from atoll.cli import phrases, prompts
from atoll.cli.frame import Frame, common_options, complete_capsules, completing, verb
from atoll.engine import shapes
from atoll.model import units
from atoll.model.errors import SpecError, StateError
from atoll.model.names import printable
from atoll.model.secret import (
    BrokerScope,
    Delivery,
    DeliveryKind,
    OriginKind,
    SecretOrigin,
)

if TYPE_CHECKING:
    from atoll.engine.secret.listing import GrantStatus, SecretStatus

_SAME_NAME = "\0"
"""`--from-env` without a variable."""
_DEFAULT_PATH = "\0"
"""`--as-file` without a path."""
_MOST_NAMES = 3
"""Of capsules in one cell or message."""
_VISIBLE = (
    "a value is never given as an argument: other users would see it in the list of processes, "
    "and your shell keeps it in its history"
)


_EXTRA = {"allow_extra_args": True}


def _refuse_value(name: str) -> None:
    """Explains why a value in the command line is refused, without quoting it."""
    if click.get_current_context().args or "=" in name:
        raise click.UsageError(_VISIBLE)


complete_secrets = completing(lambda p: [(one.name, None) for one in p.secrets.statuses()])
secret_argument = click.argument("name", shell_complete=complete_secrets)
capsule_argument = click.argument("capsule", shell_complete=complete_capsules)
ttl_option = click.option(
    "--ttl", metavar="TIME", help="How long a grant lasts, e.g. 8h; default: until it is revoked."
)


@click.group("secret", no_args_is_help=False)
@common_options
@click.pass_context
def command(
    context: click.Context, *, as_json: bool, project: str | None, quiet: bool, verbose: bool
) -> None:
    """Manage the project's secrets. Values are encrypted, and granted to one capsule at a time.

    Nothing prints a value.
    """
    context.obj = context.obj.merged(as_json=as_json, project=project, quiet=quiet, verbose=verbose)


class _Source(NamedTuple):
    """The options of `set` that name a source; at most one is given."""

    env: str | None
    file: str | None
    command: str | None
    keyring: str | None


class _Form(NamedTuple):
    """The options of `set` that say how capsules get the value."""

    variable: bool
    file: str | None
    hosts: tuple[str, ...]
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    repository: str | None
    upstream: str | None


@command.command("set", context_settings=_EXTRA)
@click.argument("name", shell_complete=complete_secrets)
@click.option(
    "--from-env", metavar="[VAR]", is_flag=False, flag_value=_SAME_NAME,
    help="Take the value from this variable; default: from NAME.",
)  # fmt: skip
@click.option("--from-file", metavar="FILE", help="Take it from a file, also when that changes.")
@click.option(
    "--from-command", metavar="COMMAND", help="Take it from the output of a shell command."
)
@click.option("--from-keyring", metavar="SERVICE/USER", help="Take it from your keyring.")
@click.option(
    "--as-variable",
    is_flag=True,
    help="Deliver it as the variable NAME; the default for a new one.",
)
@click.option(
    "--as-file", metavar="[PATH]", is_flag=False, flag_value=_DEFAULT_PATH,
    help="Deliver it as a file, named by the variable NAME_FILE, with a link at PATH (`~/…`).",
)  # fmt: skip
@click.option(
    "--broker", metavar="HOST", multiple=True,
    help="Deliver a placeholder, and put the value into requests to this host only.",
)  # fmt: skip
@click.option(
    "--allow-request", metavar="RULE", multiple=True,
    help="With --broker: only for these requests, e.g. 'POST /v1/*'.",
)  # fmt: skip
@click.option(
    "--deny-request", metavar="RULE", multiple=True, help="With --broker: not for these requests."
)
@click.option(
    "--repository", metavar="OWNER/NAME",
    help="With --broker: only for git requests to this repository.",
)  # fmt: skip
@click.option(
    "--upstream", metavar="URL", help="With --broker: send the requests to this URL instead."
)
@ttl_option
@verb
def set_(
    frame: Frame,
    name: str,
    from_env: str | None,
    from_file: str | None,
    from_command: str | None,
    from_keyring: str | None,
    as_file: str | None,
    broker: tuple[str, ...],
    allow_request: tuple[str, ...],
    deny_request: tuple[str, ...],
    repository: str | None,
    upstream: str | None,
    ttl: str | None,
    *,
    as_variable: bool,
) -> None:
    """Set the secret NAME: its value, and how capsules get it. Existing grants stay.

    The value is asked for without echo, or read from standard input. With a --from option it is
    read from there, now and at later uses. Without a form, a secret keeps the one that it has.
    """
    _refuse_value(name)
    source = _Source(from_env, from_file, from_command, from_keyring)
    form = _Form(
        as_variable, as_file, broker, allow_request, deny_request, repository, upstream
    )  # fmt: skip
    origin, delivery, ttl_s = _origin(name, source), _delivery(form), _parse_ttl(ttl)
    secrets = frame.project().secrets
    secrets.require_settable(name, delivery)
    typed = None
    if origin.kind is OriginKind.TYPED:
        typed = prompts.read_value(f"Value of {printable(name[:60])}: ")
    made = secrets.set(name, typed, origin=origin, delivery=delivery, ttl_s=ttl_s)
    frame.output.answer("secret", shapes.secret(made), f"set {_described(made)}")
    if not made.grants:
        frame.output.note(f"no capsule has it yet\nhint: atoll secret grant {name} CAPSULE")


def _origin(name: str, source: _Source) -> SecretOrigin:
    given = [(kind, text) for kind, text in source._asdict().items() if text is not None]
    if len(given) > 1:
        options = ", ".join(f"`--from-{kind}`" for kind, _ in given)
        raise click.UsageError(f"give only one of {options}")
    if not given:
        return SecretOrigin(OriginKind.TYPED)
    [(kind, text)] = given
    if not text:
        raise click.UsageError(f"`--from-{kind}` is empty")
    return SecretOrigin(OriginKind(kind), name if text == _SAME_NAME else text)


def _delivery(form: _Form) -> Delivery | None:
    forms = (form.variable, form.file is not None, bool(form.hosts))
    if sum(forms) > 1:
        raise click.UsageError("give only one of `--as-variable`, `--as-file` and `--broker`")
    if form.hosts:
        return Delivery(DeliveryKind.BROKER, broker=_scope(form))
    if form.allow or form.deny or form.repository or form.upstream:
        raise click.UsageError(
            "`--allow-request`, `--deny-request`, `--repository` and `--upstream` need `--broker`"
        )
    if form.file is not None:
        return Delivery(DeliveryKind.FILE, "" if form.file == _DEFAULT_PATH else form.file)
    return Delivery(DeliveryKind.VARIABLE) if form.variable else None


def _scope(form: _Form) -> BrokerScope:
    from atoll.model import request_rules, rules  # noqa: PLC0415 - for few secrets

    given = () if form.repository is None else (form.repository,)
    return BrokerScope(
        tuple(dict.fromkeys(_parsed("--broker", form.hosts, rules.require_host))),
        _parsed("--allow-request", form.allow, request_rules.require_rule),
        _parsed("--deny-request", form.deny, request_rules.require_rule),
        form.upstream or "",
        "".join(_parsed("--repository", given, request_rules.parse_repository)),
    )


def _parsed(option: str, words: Sequence[str], parse: Callable[[str], str]) -> tuple[str, ...]:
    found = []
    for word in words:
        try:
            found.append(parse(word))
        except ValueError as error:
            raise SpecError(f"`{option} {printable(word)}`: {error}") from None
    return tuple(found)


def _parse_ttl(text: str | None) -> float | None:
    try:
        return None if text is None else units.parse_duration_s(text)
    except ValueError as error:
        raise SpecError(f"`--ttl {printable(text or '')}`: {error}", hint="--ttl 8h") from error


@command.command("ls")
@verb
def ls(frame: Frame) -> None:
    """List the project's secrets with their source, form and grants; never a value.

    `declared` secrets are wanted by atoll.toml; granting one creates it.
    """
    found = frame.project().secrets.statuses()
    frame.output.table(
        "secrets",
        [shapes.secret(one) for one in found],
        ("name", "source", "form", "grants", "age", "expires", "last use"),
        map(_row, found),
        clip=("grants", "source", "form"),
    )
    if not found:
        frame.output.note("no secrets yet\nhint: atoll secret set NAME")
    for note in _notes(found):
        frame.output.note(note)


def _row(one: SecretStatus) -> tuple[str, ...]:
    if one.origin is None or one.delivery is None:
        return (one.name, "settings lost", "-", "-", "-", "-", "-")
    if one.created_at is None:
        return (one.name, f"declared, {one.origin.text}", one.delivery.text, "-", "-", "-", "-")
    since = one.rotated_at or one.created_at
    return (
        one.name,
        one.origin.text,
        one.delivery.text,
        _first([_granted(grant) for grant in one.grants]) or "-",
        phrases.age(since),
        "-" if one.expires_at is None else phrases.until(one.expires_at),
        "-" if one.used_at is None else phrases.age(one.used_at),
    )


def _first(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = f" +{len(names) - _MOST_NAMES}" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _granted(grant: GrantStatus) -> str:
    return f"{grant.capsule} (expired)" if grant.is_expired else grant.capsule


def _notes(found: list[SecretStatus]) -> list[str]:
    granted = [one for one in found if one.grants]
    notes = []
    if any(not one.ends_at_once for one in granted):
        notes.append("revoked or expired variables are gone from the next run on, not at once")
    if any(one.ends_at_once for one in granted):
        notes.append("revoked or expired files and brokered secrets are gone at once")
    if any(one.state == "declared" for one in found):
        notes.append("hint: atoll secret grant NAME CAPSULE, for declared secrets too")
    if lost := [one.name for one in found if one.state == "unnamed"]:
        names = ", ".join(lost)
        notes.append(
            f"the database was lost, and with it the settings of {names}\n"
            "hint: atoll secret set NAME, or: atoll secret rm NAME"
        )
    return notes


def _described(one: SecretStatus) -> str:
    origin = one.origin.text if one.origin is not None else "-"
    form = one.delivery.text if one.delivery is not None else "-"
    return printable(f"{one.name}: {origin}, {form}")


@command.command("grant")
@secret_argument
@capsule_argument
@ttl_option
@verb
def grant(frame: Frame, name: str, capsule: str, ttl: str | None) -> None:
    """Let CAPSULE use the secret NAME, for a time or until it is revoked.

    A secret that the approved atoll.toml declares is created by its first grant.
    """
    secrets = frame.project().secrets
    made = secrets.grant(name, capsule, ttl_s=_parse_ttl(ttl))
    shown = "" if made.expires_at is None else f" until {phrases.moment(made.expires_at)}"
    status = secrets.require(name)
    frame.output.answer("secret", shapes.secret(status), f"granted {name} to {capsule}{shown}")
    if made.secret.delivery.kind is DeliveryKind.VARIABLE:
        frame.output.note("runs that start from now on have it")


@command.command("revoke")
@secret_argument
@capsule_argument
@verb
def revoke(frame: Frame, name: str, capsule: str) -> None:
    """Take the secret NAME away from CAPSULE.

    Files and brokered secrets are gone at once; a variable stays in runs that have it already.
    """
    secrets = frame.project().secrets
    secrets.revoke(name, capsule)
    status = secrets.require(name)
    frame.output.answer("secret", shapes.secret(status), f"revoked {name} from {capsule}")
    if not status.ends_at_once:
        frame.output.note(
            f"runs that have it already keep it\nhint: atoll stop {capsule}, and rotate the value"
        )


@command.command("rotate", context_settings=_EXTRA)
@secret_argument
@verb
def rotate(frame: Frame, name: str) -> None:
    """Replace the value of NAME: by what is typed or on standard input, or from its source."""
    _refuse_value(name)
    secrets = frame.project().secrets
    origin = secrets.require(name).origin
    typed = None
    if origin is not None and origin.kind is OriginKind.TYPED:
        typed = prompts.read_value(f"New value of {name}: ")
    status = secrets.rotate(name, typed)
    frame.output.answer("secret", shapes.secret(status), f"rotated {name}")


@command.command("audit")
@click.argument("name", required=False, shell_complete=complete_secrets)
@verb
def audit(frame: Frame, name: str | None) -> None:
    """Show who got which secret and when it was used, the oldest first; also of removed secrets."""
    found = frame.project().secrets.audit(name)
    frame.output.table(
        "secret-audit",
        [shapes.secret_use(one) for one in found],
        ("time", "secret", "capsule", "act", "detail"),
        (
            (phrases.moment(one.at), one.secret, one.capsule or "-", one.act, one.detail or "-")
            for one in found
        ),
        clip=("detail",),
    )
    if not found:
        frame.output.note("nothing is recorded")


@command.command("rm")
@secret_argument
@click.option("-f", "--force", is_flag=True, help="Remove it also from capsules that are at work.")
@verb
def rm(frame: Frame, name: str, *, force: bool) -> None:
    """Remove the secret NAME with its value and its grants. The audit stays.

    One that capsules with active runs have is removed only with --force.
    """
    secrets = frame.project().secrets
    [status] = [one for one in secrets.statuses() if one.name == name] or [secrets.require(name)]
    held = [grant.capsule for grant in status.grants if not grant.is_expired]
    if not force:
        _require_unused(frame, name, held)
    secrets.remove(name)
    count = f"{len(held)} capsule{'' if len(held) == 1 else 's'}"
    suffix = f", also from {count}" if held else ""
    frame.output.answer("secret", shapes.secret(status), f"removed {name}{suffix}")


def _require_unused(frame: Frame, name: str, held: Sequence[str]) -> None:
    """Raises StateError if one of the capsules that have a secret has active runs."""
    living = [capsule for capsule in held if frame.capsule(capsule).living()]
    if living:
        raise StateError(
            f"`{name}` is granted to {_first(living)}, where runs are active",
            hint=f"atoll secret rm {name} --force",
        )


@command.command("unlock")
@verb
def unlock(frame: Frame) -> None:
    """Give the key of the vault to the daemon, until that ends or `atoll secret lock`."""
    secrets = frame.project().secrets
    secrets.unlock()
    shape = shapes.vault(has_passphrase=secrets.has_passphrase)
    frame.output.answer("vault", shape, "the daemon can use the vault")
    if not secrets.has_passphrase:
        frame.output.note("the vault has no passphrase\nhint: atoll secret passphrase")


@command.command("lock")
@verb
def lock(frame: Frame) -> None:
    """Take the key of the vault back from the daemon."""
    secrets = frame.project().secrets
    was_running = secrets.lock()
    shape = shapes.vault(has_passphrase=secrets.has_passphrase)
    said = "the daemon has dropped the key" if was_running else "no daemon is running"
    frame.output.answer("vault", shape, said)
    if not secrets.has_passphrase:
        frame.output.note(
            "the vault has no passphrase, so the daemon reads the key again\n"
            "hint: atoll secret passphrase"
        )


@command.command("passphrase")
@click.option("--remove", is_flag=True, help="Remove it.")
@verb
def passphrase(frame: Frame, *, remove: bool) -> None:
    """Protect the vault with a passphrase, or change it. It holds for all projects.

    The present one is asked for, or taken from ATOLL_PASSPHRASE. The new one is asked for twice, or
    read from standard input.
    """
    secrets = frame.project().secrets
    secrets.set_passphrase("" if remove else prompts.read_new_passphrase())
    said = "the vault has no passphrase" if remove else "the vault has a passphrase"
    frame.output.answer("vault", shapes.vault(has_passphrase=secrets.has_passphrase), said)
    if not remove:
        frame.output.note("hint: atoll secret unlock, so that the daemon can use brokered secrets")
