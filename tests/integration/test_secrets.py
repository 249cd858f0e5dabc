"""`atoll secret` from the command line: set, granted, used by a run, revoked, removed."""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from persons import as_both
from terminals import Terminal

CANARY = "canary-9e07-value"
DAMAGE = ["", "{", '{"format": "atoll-vault", "version": 2, "entries": {}}']


def places_of(home, text=CANARY):
    """The files of a home that contain a text."""
    files = (path for path in Path(home).rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if text.encode() in path.read_bytes()]


def test_life_of_a_secret(atoll, repo, atoll_home):
    atoll("new", "x", cwd=repo)
    done = atoll("secret", "set", "KEY", "--ttl", "8h", cwd=repo, input=f"{CANARY}\n")
    assert done.stdout == "set KEY: typed, variable\n"
    assert "hint: atoll secret grant KEY CAPSULE" in done.stderr
    print_it = ("run", "x", "--", "sh", "-c", 'echo "[$KEY]"')
    assert atoll(*print_it, cwd=repo).stdout == "[]\n", "nothing is granted by itself"
    assert atoll("secret", "grant", "KEY", "x", cwd=repo).stdout.startswith(
        "granted KEY to x until"
    )
    assert atoll(*print_it, cwd=repo).stdout == f"[{CANARY}]\n"
    assert atoll("logs", "x", cwd=repo).stdout == "[[redacted]]\n"
    listed = atoll("secret", "ls", cwd=repo)
    assert re.search(r"KEY +typed +variable +x +\d+s +in 7h +\d+s", listed.stdout)
    assert "revoked or expired variables are gone from the next run on" in listed.stderr
    [secret] = json.loads(atoll("secret", "ls", "--json", cwd=repo).stdout)["data"]
    assert (secret["state"], secret["form"], secret["ends_at_once"]) == ("set", "variable", False)
    assert [grant["capsule"] for grant in secret["grants"]] == ["x"]
    atoll("secret", "rotate", "KEY", cwd=repo, input="another-value")
    assert atoll(*print_it, cwd=repo).stdout == "[another-value]\n"
    done = atoll("secret", "revoke", "KEY", "x", cwd=repo)
    assert "runs that have it already keep it" in done.stderr
    assert atoll(*print_it, cwd=repo).stdout == "[]\n"
    atoll("secret", "grant", "KEY", "x", "--ttl", "1ms", cwd=repo)
    assert atoll(*print_it, cwd=repo).stdout == "[]\n", "expired"
    assert "x (expired)" in atoll("secret", "ls", cwd=repo).stdout
    atoll("secret", "rm", "KEY", cwd=repo)
    assert "no secrets yet" in atoll("secret", "ls", cwd=repo).stderr
    audit = json.loads(atoll("secret", "audit", "KEY", "--json", cwd=repo).stdout)["data"]
    assert [entry["act"] for entry in audit] == [
        "set", "granted", "used", "rotated", "used", "revoked", "granted", "revoked", "removed",
    ]  # fmt: skip
    assert places_of(atoll_home) == []


def test_removal_says_who_loses_it(atoll, repo):
    names = [f"x-{number}" for number in range(1, 6)]
    atoll("new", "x", "-n", "5", cwd=repo)
    atoll("secret", "set", "KEY", cwd=repo, input=CANARY)
    for name in names:
        atoll("secret", "grant", "KEY", name, cwd=repo)
    assert re.search(r"variable +x-1, x-2, x-3 \+2 +\d", atoll("secret", "ls", cwd=repo).stdout)
    atoll("run", "-d", "x-2", "--", "sleep", "300", cwd=repo)
    refused = atoll("secret", "rm", "KEY", cwd=repo, check=False)
    assert refused.returncode == 4
    assert "`KEY` is granted to x-2, where runs are active" in refused.stderr
    assert "hint: atoll secret rm KEY --force" in refused.stderr
    # A capsule where a run was meant.
    wrong = atoll("stop", "x-1", "x-2", cwd=repo, check=False)
    assert wrong.returncode == 2
    assert "hint: atoll stop x-1; atoll stop x-2" in wrong.stderr
    done = atoll("secret", "rm", "KEY", "--force", cwd=repo)
    assert done.stdout == "removed KEY, also from 5 capsules\n"
    atoll("stop", "x-2", "--grace", "0.2", cwd=repo)


def test_value_in_the_command_line_is_refused(atoll, repo, atoll_home):
    for words in (("set", "KEY", CANARY), ("set", f"KEY={CANARY}"), ("rotate", "KEY", CANARY)):
        done = atoll("secret", *words, cwd=repo, check=False)
        assert done.returncode == 2
        assert "never given as an argument" in done.stderr
        assert CANARY not in done.stdout + done.stderr
    done = atoll("secret", "set", f"{CANARY}", cwd=repo, check=False)
    assert (done.returncode, CANARY in done.stderr) == (2, False)


MISTAKES = (
    (("set", "KEY", "--from-env", "--from-file", "x"), 2, "only one of"),
    (("set", "KEY", "--as-file", "--broker", "a.example.org"), 2, "only one of"),
    (("set", "KEY", "--upstream", "http://x"), 2, "need `--broker`"),
    (("set", "KEY", "--broker", "*.example.org"), 2, "`--broker *.example.org`"),
    (("set", "KEY", "--broker", "a.example.org", "--deny-request", "x"), 2, "`METHOD /path*`"),
    (("set", "KEY", "--as-file", "/etc/x"), 2, "below the home directory"),
    (("set", "KEY", "--ttl", "soon"), 2, "--ttl soon"),
    (("set", "KEY"), 2, "is empty"),
    (("set", "KEY", "--from-env", "NOT_SET"), 4, "`NOT_SET` is not set"),
    (("set", "KEY", "--from-file", "none"), 4, "not a regular file"),
    (("set", "KEY", "--from-command", "exit 3"), 4, "exit code 3"),
    (("grant", "KEY", "nobody"), 4, "nobody"),
    (("rotate", "KEY"), 4, "there is no secret `KEY`"),
    (("rm", "KEY"), 4, "there is no secret `KEY`"),
    (("unlock",), 4, "there is no vault yet"),
    ((), 2, "missing command"),
    (("nonsense",), 2, "no such command"),
)


def test_mistakes(atoll, repo, atoll_home):
    for words, code, match in MISTAKES:
        done = atoll("secret", *words, cwd=repo, check=False)
        assert (done.returncode, match in done.stderr) == (code, True), done.stderr
    assert not (atoll_home / "secrets").exists()


def test_declared_secret(atoll, repo, atoll_home):
    (repo / "atoll.toml").write_text('[secrets.TOKEN]\nfrom = { env = "TOKEN" }\nttl = "1h"\n')
    atoll("new", "x", cwd=repo)
    listed = atoll("secret", "ls", cwd=repo).stdout
    assert "declared, env TOKEN" in listed
    granting = ("secret", "grant", "TOKEN", "x")
    refused = atoll(*granting, cwd=repo, check=False, env={"TOKEN": CANARY})
    assert (refused.returncode, "hint: read it, then: atoll trust" in refused.stderr) == (4, True)
    atoll("trust", cwd=repo)
    atoll(*granting, cwd=repo, env={"TOKEN": CANARY})
    script = ("run", "x", "--", "sh", "-c", 'echo "$TOKEN"')
    assert atoll(*script, cwd=repo, env={"TOKEN": CANARY}).stdout == f"{CANARY}\n"
    gone = atoll(*script, cwd=repo, check=False)
    assert (gone.returncode, "`TOKEN` is not set" in gone.stderr) == (4, True)
    assert places_of(atoll_home) == []


@pytest.mark.parametrize("content", DAMAGE)
def test_unusable_vault(atoll, repo, atoll_home, content):
    atoll("secret", "set", "KEY", cwd=repo, input=CANARY)
    vault = atoll_home / "secrets" / "vault.json"
    vault.write_text(content)
    for words in (("ls",), ("set", "KEY"), ("rotate", "KEY"), ("rm", "KEY")):
        done = atoll("secret", *words, cwd=repo, check=False, input="new-value")
        assert done.returncode == 4, done.stderr
        assert "is damaged" in done.stderr or "newer Atoll (version 2" in done.stderr
    assert vault.read_text() == content
    assert CANARY not in atoll("ls", cwd=repo).stdout, "other verbs work"


def test_passphrase(atoll, repo, atoll_home):
    atoll("new", "x", cwd=repo)
    atoll("secret", "set", "KEY", cwd=repo, input=CANARY)
    atoll("secret", "grant", "KEY", "x", cwd=repo)
    key = json.loads((atoll_home / "secrets" / "key").read_text())["key"]
    atoll("secret", "passphrase", cwd=repo, input="horse\n")
    assert places_of(atoll_home, key) == []
    script = ("run", "x", "--", "sh", "-c", 'echo "$KEY"')
    locked = atoll(*script, cwd=repo, check=False)
    assert (locked.returncode, "the vault is locked" in locked.stderr) == (4, True)
    wrong = atoll(*script, cwd=repo, check=False, env={"ATOLL_PASSPHRASE": "cow"})
    assert (wrong.returncode, "passphrase of the vault is wrong" in wrong.stderr) == (4, True)
    assert atoll(*script, cwd=repo, env={"ATOLL_PASSPHRASE": "horse"}).stdout == f"{CANARY}\n"
    assert "KEY" in atoll("secret", "ls", cwd=repo).stdout
    refused = atoll("secret", "passphrase", "--remove", cwd=repo, check=False)
    assert refused.returncode == 4
    atoll("secret", "passphrase", "--remove", cwd=repo, env={"ATOLL_PASSPHRASE": "horse"})
    assert atoll(*script, cwd=repo).stdout == f"{CANARY}\n"
    assert "no daemon is running" in atoll("secret", "lock", cwd=repo).stdout


def test_prompts_do_not_echo(atoll, repo, atoll_home):
    def at_terminal(*words):
        return Terminal([sys.executable, "-m", "atoll", "secret", *words], repo)

    setting = at_terminal("set", "KEY")
    setting.expect("Value of KEY: ")
    setting.type(f"{CANARY}\n")
    setting.expect("set KEY: typed, variable")
    assert CANARY not in setting.seen
    setting.close()
    protecting = at_terminal("passphrase")
    protecting.expect("New passphrase: ")
    protecting.type("horse\n")
    protecting.expect("The same again: ")
    protecting.type("cow\n")
    protecting.expect("the two passphrases differ")
    protecting.close()
    atoll("secret", "passphrase", cwd=repo, input="horse")
    rotating = at_terminal("rotate", "KEY")
    rotating.expect("New value of KEY: ")
    rotating.type("other-value\n")
    rotating.expect("Passphrase of the vault: ")
    rotating.type("horse\n")
    rotating.expect("rotated KEY")
    rotating.close()
    interrupted = at_terminal("set", "KEY")
    interrupted.expect("Value of KEY: ")
    interrupted.type("\x03")
    interrupted.expect("interrupted by signal 2")
    interrupted.close()


def test_lost_database_leaves_the_vault(atoll, repo, atoll_home):
    atoll("new", "x", cwd=repo)
    atoll("secret", "set", "KEY", cwd=repo, input=CANARY)
    atoll("secret", "grant", "KEY", "x", cwd=repo)
    for path in (*atoll_home.glob("state.db*"), *atoll_home.glob("backups/*")):
        path.unlink()
    done = atoll("gc", cwd=repo)
    assert "no capsule has a secret any more" in done.stderr
    assert "KEY   settings lost" in atoll("secret", "ls", cwd=repo).stdout
    refused = atoll("secret", "grant", "KEY", "x", cwd=repo, check=False)
    assert refused.returncode == 4
    atoll("secret", "set", "KEY", cwd=repo, input=CANARY)
    atoll("secret", "grant", "KEY", "x", cwd=repo)
    script = ("run", "x", "--", "sh", "-c", 'echo "$KEY"')
    assert atoll(*script, cwd=repo).stdout == f"{CANARY}\n"


@contextmanager
def upstream():
    seen: list[str] = []

    class Upstream(http.server.BaseHTTPRequestHandler):
        """Answers with the credential that has arrived."""

        def do_GET(self):
            content = (self.headers.get("Authorization") or "none").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            seen.append(content.decode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


ASK = """
import os, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
request = urllib.request.Request("http://127.0.0.1:62001/broker/KEY/x")
request.add_header("Authorization", "Bearer " + os.environ["KEY"])
try:
    print(opener.open(request).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@as_both
def test_locked_vault_and_the_broker(person):
    person.wants_daemon()
    with upstream() as (url, seen):
        words = ("--broker", "api.example.org", "--upstream", url)
        person.atoll("secret", "set", "KEY", *words, input=f"{CANARY}\n")
        person.atoll("new", "x")
        person.atoll("secret", "grant", "KEY", "x")

        def ask():
            return person.atoll("run", "x", "--", "python3", "-c", ASK).stdout

        assert ask() == "200\n"
        person.atoll("secret", "passphrase", input="horse\n")
        assert ask().startswith("503")
        assert "the vault is locked" in person.atoll("network", "x").stdout
        person.atoll("secret", "unlock", env={"ATOLL_PASSPHRASE": "horse"})
        assert ask() == "200\n"
        person.atoll("secret", "lock")
        assert ask().startswith("503")
        person.atoll("secret", "unlock", env={"ATOLL_PASSPHRASE": "horse"})
        person.atoll("secret", "revoke", "KEY", "x")
        refused = person.atoll(
            "run", "--env", "KEY=x", "x", "--", "python3", "-c", ASK, check=False
        )
        assert refused.stdout.startswith("403"), refused.stdout
        assert seen == [f"Bearer {CANARY}"] * 2
    assert [one["act"] for one in person.answer("secret", "audit")].count("used") >= 1
    assert places_of(person.home) == []
    assert CANARY not in person.atoll("daemon", "logs").stdout
