"""What capsules get of granted secrets, and when it is gone again."""

from __future__ import annotations

import json
import re

import pytest

import atoll as library
import persons
from atoll.host import view_client
from atoll.model.secret import Delivery, DeliveryKind
from persons import as_both

TOKEN, FILE, BROKERED = "token-value-1f0a", "file-value-2e9b\nsecond line", "broker-value-3d8c"
LINKED = "linked-value-4c7d"


@pytest.fixture
def granted(person):
    """A capsule with one secret of each form."""
    person.atoll("new", "x")
    put(person, "TOKEN", TOKEN)
    put(person, "FILE", FILE, "--as-file")
    put(person, "LINKED", LINKED, "--as-file", "~/.config/tool/key")
    put(person, "API_KEY", BROKERED, "--broker", "api.example.org")
    for name in ("TOKEN", "FILE", "LINKED", "API_KEY"):
        person.atoll("secret", "grant", name, "x")
    return person


def put(person, name, value, *form):
    person.atoll("secret", "set", name, *form, input=value)


def logged(person, name="x"):
    return person.atoll("logs", name).stdout


@as_both
def test_each_form_reaches_the_run(granted):
    said = granted.sh("x", 'echo "$TOKEN"; cat "$FILE_FILE" ~/.config/tool/key; echo "$API_KEY"')
    assert said.startswith(f"{TOKEN}\n{FILE}{LINKED}atollph")
    assert BROKERED not in said
    assert logged(granted).startswith("[redacted]\n[redacted][redacted]atollph")

    # Only the capsule's user can read the files, and nobody inside can change them.
    said = granted.sh(
        "x",
        'stat -c "%a %n" /run/atoll /run/atoll/* /run/atoll/secrets/*; id -u; '
        "stat -c %u /run/atoll/secrets/FILE",
    )
    listed, (user, owner) = said.split("\n")[:-3], said.split("\n")[-3:-1]
    assert listed == [
        "755 /run/atoll", "444 /run/atoll/ca-bundle.pem", "444 /run/atoll/ca.pem",
        "755 /run/atoll/links", "755 /run/atoll/secrets", "400 /run/atoll/secrets/FILE",
        "400 /run/atoll/secrets/LINKED",
    ]  # fmt: skip
    assert user == owner
    for attempt in (
        "echo x >/run/atoll/ca.pem", "chmod u+w /run/atoll/secrets/FILE", "touch /run/atoll/new",
        "rm -f /run/atoll/secrets/FILE", "mv /run/atoll /run/away", "umount /run/atoll",
        "mount -o remount,rw /run/atoll", "ln -f /run/atoll/secrets/FILE /run/copy",
    ):  # fmt: skip
        granted.sh("x", f"if {attempt} 2>/dev/null; then exit 1; fi")

    # What programs need to trust the broker: the usual roots, and the capsule's own CA.
    said = granted.sh("x", 'cat "$NODE_EXTRA_CA_CERTS"; echo =; cat "$SSL_CERT_FILE"')
    authority, _, bundle = said.partition("=\n")
    assert authority.count("BEGIN CERTIFICATE") == 1
    assert authority.strip() in bundle

    # A view that was closed has nothing until the next run.
    granted.end_view("x")
    assert granted.sh("x", "cat /run/atoll/secrets/LINKED ~/.config/tool/key") == LINKED * 2
    shown = granted.answer("show", "x")["parts"]["secrets"]
    assert shown == {
        "API_KEY": "broker api.example.org", "FILE": "file", "TOKEN": "variable",
        "LINKED": "file ~/.config/tool/key",
    }  # fmt: skip


def test_files_follow_the_owner_at_once(granted, wait_for):
    """A run that has begun sees a new value, the end of a grant, and its deadline."""
    script = (
        'seen=; while true; do now=$(cat "$FILE_FILE" 2>/dev/null || echo gone); '
        'test "$now" = "$seen" || echo "$now" | wc -c; seen=$now; sleep 0.05; done'
    )
    granted.atoll("run", "x", "-d", "--", "sh", "-c", script)

    def sizes():
        return logged(granted).split()

    wait_for(lambda: sizes() == ["28"])
    granted.atoll("secret", "rotate", "FILE", input="new-file-value")
    wait_for(lambda: sizes() == ["28", "15"])
    granted.atoll("secret", "revoke", "FILE", "x")
    wait_for(lambda: sizes() == ["28", "15", "5"])
    granted.atoll("secret", "grant", "FILE", "x")
    wait_for(lambda: sizes() == ["28", "15", "5", "15"])
    # The holder keeps the deadline by itself: no daemon and no command runs.
    granted.atoll("secret", "grant", "FILE", "x", "--ttl", "1s")
    wait_for(lambda: sizes() == ["28", "15", "5", "15", "5"])
    granted.atoll("stop", "x")
    # A run that starts now gets neither the file nor its variable.
    assert granted.sh("x", 'echo "[${FILE_FILE-}]"; ls /run/atoll/secrets') == "[]\nLINKED\n"


def test_fork_gets_only_what_holds_no_value(granted):
    granted.sh("x", 'echo "$API_KEY" >~/placeholder')
    done = granted.atoll("fork", "x", "y")
    assert "`y` does not get `FILE`, `LINKED`, `TOKEN` of `x`" in done.stderr
    said = granted.sh("y", 'cat ~/placeholder; echo "$API_KEY"; echo "[${TOKEN-}${FILE_FILE-}]"')
    placeholder, same, nothing = said.split()
    assert placeholder == same
    assert nothing == "[]"
    assert list(granted.answer("show", "y")["parts"]["secrets"]) == ["API_KEY"]
    acts = {
        (entry["secret"], entry["act"])
        for entry in granted.answer("secret", "audit")
        if entry["capsule"] == "y"
    }
    assert acts >= {("API_KEY", "granted"), ("TOKEN", "withheld"), ("FILE", "withheld")}
    # A rollback changes no grant, and files are there again.
    granted.atoll("snapshot", "x")
    granted.atoll("rollback", "x")
    assert granted.sh("x", "cat ~/.config/tool/key") == LINKED


def test_link_does_not_replace_a_file(granted):
    granted.atoll("secret", "revoke", "LINKED", "x")
    granted.sh("x", "mkdir -p ~/.config/tool; echo mine >~/.config/tool/key")
    granted.atoll("secret", "grant", "LINKED", "x")
    done = granted.atoll("run", "x", "--", "sh", "-c", "cat ~/.config/tool/key")
    assert "something else is there; the file is `/run/atoll/secrets/LINKED`" in done.stderr
    assert done.stdout == "mine\n"


def test_value_that_cannot_be_read_stops_the_run(person):
    person.atoll("new", "x")
    person.write({"value": "value-of-a-file"}, person.place)
    person.atoll("secret", "set", "KEY", "--from-file", person.place / "value")
    person.atoll("secret", "grant", "KEY", "x")
    assert person.sh("x", 'echo "$KEY"') == "value-of-a-file\n"
    (person.place / "value").unlink()
    done = person.atoll("run", "x", "--", "touch", "ran", check=False)
    assert done.returncode == 4
    assert "value-of-a-file" not in done.stderr
    person.atoll("secret", "revoke", "KEY", "x")
    assert "ran" not in person.sh("x", "ls")


@pytest.mark.parametrize("level", ["worktree", "clone"])
def test_other_levels_get_variables_only(atoll, repo, atoll_home, level):
    atoll("new", "x", "--level", level, cwd=repo)
    for name, *form in (["A"], ["B", "--as-file"], ["C", "--broker", "api.example.org"]):
        atoll("secret", "set", name, *form, cwd=repo, input=f"value-of-{name}")
    atoll("secret", "grant", "A", "x", cwd=repo)
    for name in ("B", "C"):
        done = atoll("secret", "grant", name, "x", cwd=repo, check=False)
        assert done.returncode == 6
        assert re.search(rf"`{name}`.* level `{level}`", done.stderr)
        assert "--level sandbox" in done.stderr
    done = atoll("run", "x", "--", "sh", "-c", 'echo "$A"', cwd=repo)
    assert done.stdout == "value-of-A\n"
    assert atoll("logs", "x", cwd=repo).stdout == "[redacted]\n"
    assert json.loads(atoll("secret", "ls", "--json", cwd=repo).stdout)


def test_revocation_during_the_start_of_a_run_wins(repo, atoll_home, monkeypatch):
    """The value was read before, and is put into the view afterwards."""
    persons.require("bwrap")
    project = library.open_project(repo)
    capsule = project.new("x", level="sandbox")
    form = Delivery(DeliveryKind.FILE)
    project.secrets.set("FILE", value=b"value-of-a-file", delivery=form)
    project.secrets.grant("FILE", "x")
    put = view_client.put_files

    def put_late(*args, **options):
        monkeypatch.setattr(view_client, "put_files", put)
        project.secrets.revoke("FILE", "x")
        return put(*args, **options)

    assert capsule.run(["cat", "/run/atoll/secrets/FILE"]).stdout == b"value-of-a-file"
    monkeypatch.setattr(view_client, "put_files", put_late)
    capsule.run(["true"])
    assert view_client.find_files(capsule.record.directory) == set()
    capsule.remove(force=True)
    project.session.store.close()
