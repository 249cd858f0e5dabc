"""The owner's login of an agent, and the placeholder that a capsule gets instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import FoundLogin, InsideLogin
from atoll.engine.state.session import Session
from atoll.model.adapter import AdapterSpec, Login
from atoll.model.errors import SecretUnavailable, StateError
from atoll.model.secret import OriginKind
from atoll.model.state import CapsuleRecord


class ChosenLogin(NamedTuple):
    """A way to log in that the owner has used."""

    login: Login
    found: FoundLogin


class LoginState(NamedTuple):
    """What `atoll agents --available` says of a login."""

    text: str
    is_usable: bool
    cure: str = ""


def find_chosen(session: Session, project_id: str, spec: AdapterSpec) -> ChosenLogin | None:
    """The first login of the owner's that works; None when there is none at all.

    Raises StateError when every login that exists is expired or unusable, with the cure.
    """
    problem: StateError | None = None
    for login in spec.logins:
        chosen = _with_upstream(login, spec)
        try:
            found = registry.find_login(chosen, _owner(session, project_id, login))
        except StateError as error:
            problem = problem or error
            continue
        if found is None:
            continue
        if not found.is_expired:
            return ChosenLogin(chosen, found)
        problem = problem or StateError(
            f"the {login.title} of {spec.title or spec.program} has expired",
            hint=found.cure or login.cure,
        )
    if problem is not None:
        raise problem
    return None


def require_chosen(session: Session, project_id: str, spec: AdapterSpec) -> ChosenLogin | None:
    """As `find_chosen`, and raises StateError when the agent needs a login and there is none."""
    chosen = find_chosen(session, project_id, spec)
    if chosen is None and spec.needs_login:
        ways = [login.cure for login in spec.logins if login.cure]
        keys = [login.variable for login in spec.logins if login.variable]
        others = f", or: atoll secret set {keys[0]}" if keys else ""
        raise StateError(
            f"{spec.title or spec.program} is not logged in",
            hint=(ways[0] if ways else "log in with its own program") + others,
        )
    return chosen


def require_same(
    session: Session, capsule: CapsuleRecord, adapter: str, spec: AdapterSpec
) -> ChosenLogin | None:
    """The login for the next turn of an agent: that of the turns before, as long as it works, with
    the value that the owner's environment has now. Raises as `require_chosen`.
    """
    granted = _find_granted(session, capsule, adapter)
    present = None if granted is None else _find_same(spec, granted.login)
    if granted is None or present is None:
        return require_chosen(session, capsule.project_id, spec)
    with suppress(StateError):
        chosen = find_chosen(session, capsule.project_id, spec)
        if chosen is not None and _is_same(chosen.login, granted.login):
            return chosen
    # What the broker may do with it is what the adapter says now.
    return ChosenLogin(present, granted.found)


def _find_same(spec: AdapterSpec, granted: Login) -> Login | None:
    """The login as the adapter describes it now."""
    found = (login for login in spec.logins if _is_same(login, granted))
    return next((_with_upstream(login, spec) for login in found), None)


def _is_same(one: Login, other: Login) -> bool:
    return (one.kind, one.variable, one.file) == (other.kind, other.variable, other.file)


def _find_granted(session: Session, capsule: CapsuleRecord, adapter: str) -> ChosenLogin | None:
    """The login that the broker may use for this agent; None when it does not work any more."""
    from atoll.engine.secret import brokered  # noqa: PLC0415 - only for agents with a login

    for grant in session.store.secret_grants(capsule.id):
        if grant.secret.origin.kind is OriginKind.LOGIN and grant.secret.origin.of == adapter:
            with suppress(SecretUnavailable):
                found = brokered.require_login(session, grant.secret)
                return ChosenLogin(brokered.login_of(grant.secret), found)
    return None


def with_model(spec: AdapterSpec, chosen: ChosenLogin | None) -> AdapterSpec:
    """The adapter with the model that fits its login, unless it names one itself."""
    if spec.model or chosen is None or not chosen.login.model:
        return spec
    return spec.model_copy(update={"model": chosen.login.model})


def describe(session: Session, project_id: str, spec: AdapterSpec) -> LoginState:
    """The state of the owner's login, for a list."""
    try:
        chosen = find_chosen(session, project_id, spec)
    except StateError as error:
        return LoginState(error.message, is_usable=False, cure=error.hint or "")
    if chosen is None:
        if not spec.needs_login:
            return LoginState("not needed", is_usable=True)
        cure = spec.logins[0].cure if spec.logins else ""
        return LoginState("not logged in", is_usable=False, cure=cure)
    account = f" ({chosen.found.account})" if chosen.found.account else ""
    return LoginState(f"{chosen.login.title}{account}", is_usable=True)


def granted_names(session: Session, capsule: CapsuleRecord) -> frozenset[str]:
    """The secrets that are logins, and that the broker may use for this capsule."""
    grants = session.store.secret_grants(capsule.id)
    return frozenset(g.secret.name for g in grants if g.secret.origin.kind is OriginKind.LOGIN)


def grant(
    session: Session, capsule: CapsuleRecord, adapter: str, chosen: ChosenLogin
) -> InsideLogin:
    """Lets the broker use a login for this capsule, and returns what the capsule holds instead."""
    from atoll.engine.secret import secrets  # noqa: PLC0415 - only for agents with a login

    granted = secrets.grant_login(session, capsule, adapter, chosen.login)
    return registry.inside_login(chosen.login, chosen.found, granted.placeholder)


def _owner(session: Session, project_id: str, login: Login) -> Mapping[str, str]:
    """The owner's environment, with the secret of the login's name in the vault."""
    if login.variable is None or session.owner.get(login.variable):
        return session.owner
    secret = session.store.find_secret(project_id, login.variable)
    if secret is None:
        return session.owner
    from atoll.engine.secret import resolve  # noqa: PLC0415 - few have a key in the vault

    value = resolve.resolve_value(session, secret).decode(errors="surrogateescape")
    return {**session.owner, login.variable: value}


def _with_upstream(login: Login, spec: AdapterSpec) -> Login:
    """The adapter's own `upstream` stands for that of all its logins."""
    return login.model_copy(update={"upstream": spec.upstream}) if spec.upstream else login
