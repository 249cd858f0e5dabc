"""Which requests are forwarded, and with which secrets."""

from __future__ import annotations

import json

import pytest

from atoll.daemon.broker.admission import Rejection, admit, parse_client_request, require_host
from atoll.drivers.network import http1
from atoll.engine.secret.brokered import BrokeredSecret
from atoll.model.secret import (
    BrokerScope,
    Delivery,
    DeliveryKind,
    GrantRecord,
    OriginKind,
    SecretOrigin,
    SecretRecord,
    make_placeholder,
    marker_of,
)

HOST = "api.example.org"


def secret(name: str, *, model: bool = False, **scope: object) -> BrokeredSecret:
    broker = BrokerScope((HOST,), **scope)  # type: ignore[arg-type]
    delivery = Delivery(DeliveryKind.BROKER, broker=broker)
    number = len(name)
    record = SecretRecord(number, "p", name, SecretOrigin(OriginKind.TYPED), delivery, None, 0.0)
    return BrokeredSecret(
        GrantRecord(record, 1, make_placeholder(f"{name:10}".encode()), 0.0), model
    )


def parsed(target: str = "/v1/x", *fields: str, method: str = "GET", prefix: str = ""):
    lines = [f"{method} {target} HTTP/1.1", f"Host: {HOST}", *fields, "", ""]
    request = http1.parse_request("\r\n".join(lines).encode("latin-1"))
    return parse_client_request(request, path_prefix=prefix)


def bearer(owner: BrokeredSecret) -> str:
    return f"Authorization: Bearer {marker_of(owner.grant.placeholder)}"


def rejected(*arguments, **more) -> Rejection:
    with pytest.raises(Rejection) as caught:
        admit(*arguments, **more)
    return caught.value


def test_secret_is_chosen_by_its_placeholder():
    one, other = secret("ONE"), secret("OTHER", model=True)
    found = admit(parsed("/v1/x", bearer(one)), HOST, [one, other])
    assert (found.secrets, found.grants, found.model) == ((one,), (one,), False)
    found = admit(parsed("/v1/x", bearer(other)), HOST, [one, other])
    assert (found.secrets, found.model) == ((other,), True)
    found = admit(parsed("/v1/x", bearer(one), f"X-Key: {marker_of(other.grant.placeholder)}"),
                  HOST, [one, other])  # fmt: skip
    assert set(found.secrets) == {one, other}


def test_request_without_placeholder_needs_one_that_permits_it():
    models, files = secret("MODELS", allow=("GET /v1/models",)), secret("FILES", allow=("* /f/*",))
    found = admit(parsed("/v1/models"), HOST, [models, files])
    assert (found.secrets, found.grants) == ((), (models,))
    assert rejected(parsed("/v2"), HOST, [models, files]).status == 403


def test_all_secrets_of_a_request_must_permit_it():
    free, strict = secret("FREE"), secret("STRICT", deny=("* /v1/x",))
    both = parsed("/v1/x", bearer(free), f"X-B: {marker_of(strict.grant.placeholder)}")
    found = rejected(both, HOST, [free, strict])
    assert found.secret == strict
    assert found.message == "`GET /v1/x` is not allowed for `STRICT`: the rule `* /v1/x` denies it"
    admit(parsed("/v1/x", bearer(free)), HOST, [free, strict])


def test_login_of_a_model_goes_into_credentials_only():
    model, other = secret("MODEL", model=True), secret("OTHER")
    said = rejected(parsed("/v1/x", bearer(model), f"X-Odd: {bearer(model)[22:]}"), HOST, [model])
    assert "`x-odd` has a placeholder" in said.message
    admit(parsed("/v1/x", f"X-Odd: {bearer(other)[22:]}"), HOST, [model, other])


@pytest.mark.parametrize("method", ["post", "Delete", "trace"])
def test_method_in_lower_case(method):
    with pytest.raises(Rejection) as caught:
        parsed(method=method)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "field",
    [
        "X-HTTP-Method: PUT", "x_http_method_override: PUT", "X-Original-Method: PUT",
        "X-Forwarded-Method: PUT", "X-Forwarded-Uri: /a", "X-Original-URL: /a", "X-Rewrite_URL: /a",
        "X-Override-URL: /a", "X-Forwarded-Prefix: /a",
    ],
)  # fmt: skip
def test_other_method_or_path(field):
    denied = secret("A", deny=("PUT /*",))
    assert "it has the header" in rejected(parsed("/v1/x", field), HOST, [denied]).message
    admit(parsed("/v1/x", field), HOST, [secret("A")])


@pytest.mark.parametrize(
    "query", ["_method=DELETE", "a=1&_METHOD=PUT", "a;%5fmethod=PUT", "X-HTTP-Method-Override=PUT"]
)
def test_other_method_in_the_query(query):
    denied = secret("A", allow=("POST /v1/*",))
    target = f"/v1/x?{query}"
    said = rejected(parsed(target, method="POST"), HOST, [denied])
    assert "it has the parameter" in said.message
    assert "=" not in said.message
    admit(parsed(target, method="POST"), HOST, [secret("A")])
    admit(parsed("/v1/x?method=_method&a=_method", method="POST"), HOST, [denied])


def test_parameters_of_segments_do_not_change_what_a_request_is():
    assert parsed("/v1/messages;x=1").plain_path == "/v1/messages"


def test_without_grants():
    found = rejected(parsed(), HOST, [])
    assert (found.status, found.secret) == (403, None)
    body = json.loads(found.body())
    assert body["type"] == "error"
    assert "revoked or has expired" in body["error"]["message"]
    assert "atoll secret grant" in body["error"]["hint"]


def test_foreign_credential():
    found = rejected(parsed("/", "X-Api-Key: sk-secret-of-somebody"), HOST, [secret("ONE")])
    assert "sk-secret" not in found.message + found.logged + found.body().decode()


def test_hidden_credential_is_not_forwarded():
    """A field that `Connection` names ends here, so it is neither forwarded nor a credential."""
    request = parsed("/", "Connection: x-api-key", "X-Api-Key: sk")
    assert request.fields == ()


@pytest.mark.parametrize("scope", [{"allow": ("GET /*",)}, {"repository": "o/n"},
                                   {"upstream": "https://proxy.example/x"}])  # fmt: skip
def test_path_must_be_plain_if_something_depends_on_it(scope):
    one = secret("ONE", **scope)
    for target in ("/a/../b", "/a%2fb"):
        assert rejected(parsed(target, bearer(one)), HOST, [one]).status == 403
        assert rejected(parsed(target), HOST, [secret("ONE", model=True)]).status == 403
        admit(parsed(target, bearer(one)), HOST, [secret("ONE")])


def test_secrets_for_different_servers():
    here, there = secret("HERE"), secret("THERE", upstream="https://proxy.example")
    both = parsed("/", bearer(here), f"X-B: {marker_of(there.grant.placeholder)}")
    assert rejected(both, HOST, [here, there]).status == 403


@pytest.mark.parametrize("method", ["TRACE", "TRACK"])
def test_methods_that_would_reveal_the_value(method):
    with pytest.raises(Rejection) as caught:
        parsed("/", method=method)
    assert caught.value.status == 405


def test_base_url_prefix_is_taken_away():
    assert parsed("/broker/KEY/v1/x?y", prefix="/broker/KEY").path == "/v1/x"
    assert parsed("/broker/KEY", prefix="/broker/KEY").path == "/"


def test_shown_is_bounded_and_printable():
    request = parsed("/" + "a" * 500 + "?key=value", method="POST")
    assert len(request.shown) < 200
    assert "value" not in request.shown


@pytest.mark.parametrize(
    ("host", "is_fine"),
    [
        (HOST, True),
        (HOST.upper(), True),
        (f"{HOST}:443", True),
        (f"{HOST}.", True),
        (f"{HOST}:80", False),
        (f"x.{HOST}", False),
        (f"a@{HOST}", False),
        ("", False),
        ("[::1]", False),
        (f"{HOST}, {HOST}", False),
    ],
)
def test_host(host, is_fine):
    request = http1.parse_request(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    if is_fine:
        require_host(request, HOST)
    else:
        with pytest.raises(Rejection) as caught:
            require_host(request, HOST)
        assert caught.value.status == 421


@pytest.mark.parametrize(
    ("fields", "method", "upgrade"),
    [
        (["Connection: keep-alive, Upgrade", "Upgrade: WebSocket"], "GET", b"websocket"),
        (["Connection: Upgrade", "Upgrade: h2c"], "GET", b""),
        (["Connection: Upgrade", "Upgrade: websocket"], "POST", b""),
        (["Connection: Upgrade", "Upgrade: websocket", "Content-Length: 3"], "GET", b""),
        (["Upgrade: websocket"], "GET", b""),
    ],
)
def test_only_websocket_is_an_upgrade(fields, method, upgrade):
    assert parsed("/", *fields, method=method).upgrade == upgrade
