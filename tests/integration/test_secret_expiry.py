"""A brokered grant that expires, through real traffic: the daemon sends the value no more."""

from __future__ import annotations

import json

from persons import as_user
from upstreams import Upstream

VALUE = "value-that-expires-5e1d"
ASK = """
import http.client, os
def ask():
    connection.request("GET", "/broker/KEY/use", headers={"X-Key": os.environ["KEY"]})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")
connection = http.client.HTTPConnection("127.0.0.1", 62001, timeout=20)
"""
ONCE = f"{ASK}\nprint(*ask())"
UNTIL_REFUSED = f"""{ASK}
print("first", *ask(), flush=True)
status = 200
while status == 200:
    status, text = ask()
print("last", status, text)
"""


@as_user
def test_expired_grant_sends_no_value(person, upstream, wait_for):
    person.wants_daemon()
    person.atoll("new", "x")
    person.atoll(
        "secret", "set", "KEY", "--broker", "api.example.org", "--upstream", upstream, input=VALUE
    )
    person.atoll("secret", "grant", "KEY", "x", "--ttl", "1h")
    placeholder = person.atoll("run", "x", "--", "printenv", "KEY").stdout.strip()
    assert person.atoll("run", "x", "--", "python3", "-c", ONCE).stdout == "200 used\n"

    # One connection, which is open when the grant ends.
    person.atoll("run", "x", "-d", "--", "python3", "-c", UNTIL_REFUSED)
    wait_for(lambda: "first 200 used" in person.atoll("logs", "x").stdout)
    person.atoll("secret", "grant", "KEY", "x", "--ttl", "1s")
    person.atoll("wait", "x")
    logged = person.atoll("logs", "x").stdout
    assert "last 200" not in logged
    assert VALUE not in logged
    assert set(Upstream.keys) == {VALUE}

    asked = len(Upstream.keys)
    # A new run has no placeholder; an agent may have kept it.
    words = ("run", "x", "--env", f"KEY={placeholder}", "--", "python3", "-c", ONCE)
    refused = person.atoll(*words).stdout
    assert not refused.startswith("200")
    assert len(Upstream.keys) == asked
    [status] = json.loads(person.atoll("secret", "ls", "--json").stdout)["data"]
    assert [grant["expired"] for grant in status["grants"]] == [True]

    # The same placeholder, and the time starts anew.
    person.atoll("secret", "grant", "KEY", "x", "--ttl", "1h")
    wait_for(lambda: person.atoll("run", "x", "--", "python3", "-c", ONCE).stdout == "200 used\n")
