"""What people do every day with several capsules: many at once, from where they are, in order."""

from __future__ import annotations

import json

import pytest

from persons import as_user

USAGE, STATE, NOT_ENTERED = 2, 4, 126


@pytest.fixture
def online(person):
    person.wants_daemon()
    return person


@as_user
def test_several_capsules_are_made_at_once(person):
    assert person.atoll("new", "a", "b", "c").stdout.split() == ["a", "b", "c"]
    assert [one["name"] for one in person.answer("ls")] == ["a", "b", "c"]
    twice = person.atoll("new", "d", "d", check=False)
    assert (twice.returncode, "`d` is given twice" in twice.stderr) == (USAGE, True)
    # All or none.
    assert person.atoll("new", "d", "a", check=False).returncode == STATE
    assert person.atoll("new", "a", "--dry-run", check=False).returncode == STATE
    assert [one["name"] for one in person.answer("ls")] == ["a", "b", "c"]


@as_user
def test_command_starts_where_its_owner_is(person):
    person.write({"src/deep/f": "1", "notes/f": "1"})
    person.commit("directories")
    person.atoll("new", "x")
    person.write({"later/f": "1"})
    person.sh("x", "rm -r notes && ln -s /etc notes")

    def where(*options, at=""):
        done = person.atoll("run", "x", *options, "--", "pwd", cwd=person.repo / at, check=False)
        return done.returncode, done.stdout.strip().removeprefix(str(person.repo)), done.stderr

    assert where(at="src/deep")[:2] == (0, "/src/deep")
    assert where("--cwd", "deep", at="src")[:2] == (0, "/src/deep")
    assert where("--cwd", "/tmp", at="src")[:2] == (0, "/tmp")
    # What is not inside, and what is a link there, is no place to start at.
    for directory in ("later", "notes"):
        code, place, said = where(at=directory)
        assert (code, place) == (0, "")
        assert f"`{directory}`" in said
    code, _, said = where("--cwd", "nowhere")
    assert code == NOT_ENTERED
    assert "nowhere" in said


@as_user
def test_logs_are_those_of_what_runs(person, wait_for):
    person.atoll("new", "x")
    serve = "echo serving; exec sleep 600"
    person.atoll("run", "x", "-d", "--", "sh", "-c", serve)
    person.atoll("run", "x", "--", "echo", "something else")
    wait_for(lambda: person.atoll("logs", "x").stdout == "serving\n", what="the server's log")
    assert person.atoll("logs", "x", "2").stdout == "something else\n"
    person.atoll("stop", "x")
    assert person.atoll("logs", "x").stdout == "something else\n"


@as_user
def test_ls_tells_what_changed_what_runs_and_how_far_branches_are(person):
    person.write({"README": "1\n"})
    person.commit("one")
    person.atoll("new", "x", "y")
    person.sh("x", "mkdir -p node_modules/m && echo 1 > node_modules/m/i && echo 2 > README")
    person.sh("x", "git add README && git commit -qm two && rm README")
    person.atoll("run", "y", "-d", "--", "sleep", "600")
    person.git("commit", "-q", "--allow-empty", "-m", "of the owner's")
    x, y = person.answer("ls")
    assert (x["changed_files"], x["ahead"], x["behind"], x["runs"]) == (1, 1, 1, [])
    assert (y["changed_files"], y["ahead"], y["behind"]) == (0, 0, 1)
    assert [run["argv"] for run in y["runs"]] == [["sleep", "600"]]
    lines = person.atoll("ls").stdout.splitlines()
    assert lines[1].split()[:5] == ["x", "sandbox", "ready", "1", "+1"]
    assert "sleep 600" in lines[2]
    person.atoll("pause", "y")
    assert "paused" in person.atoll("ls").stdout
    person.atoll("resume", "y")


@as_user
def test_ls_of_all_projects(person):
    person.atoll("new", "x")
    other = person.make_repo({"f": "1"}, name="other")
    person.atoll("new", "z", cwd=other)
    # From anywhere.
    done = person.atoll("ls", "-a", "--json", cwd=person.place)
    told = {(one["project"], one["name"]) for one in json.loads(done.stdout)["data"]}
    assert told == {(person.repo.name, "x"), ("other", "z")}
    assert person.atoll("ls", "-a", cwd=person.place).stdout.startswith("PROJECT  NAME")
    person.atoll("rm", "z", cwd=other)


@as_user
def test_refused_connections_are_reported_after_a_run(online):
    """Clients say 403 or that a name has no address, and nothing of whose rule that was."""
    online.atoll("new", "x")
    ask = "for i in 1 2 3; do curl -sS -m 20 https://one.example/; done; getent hosts two.example"
    told = online.atoll("run", "x", "--", "sh", "-c", ask, check=False)
    [line] = [line for line in told.stderr.splitlines() if line.startswith("network: ")]
    count = int(line.split()[1])
    # A name may be asked for more than once.
    assert count >= 4, line
    assert f"network: {count} connections refused (one.example, two.example); " in line
    assert line.endswith("atoll network x --refused, atoll allow x one.example two.example")
    # Those of another run are not those of this one.
    assert "network:" not in online.atoll("run", "x", "--", "true").stderr
    data = json.loads(online.atoll("run", "x", "--json", "--", "sh", "-c", ask).stdout)["data"]
    assert {one["ask"] for one in data["network"]["refused"]} == {"one.example", "two.example"}
    online.atoll("run", "x", "-d", "--", "curl", "-s", "-m", "20", "https://three.example/")
    assert "atoll allow x three.example" in online.atoll("wait", "x", check=False).stderr
    online.atoll("allow", "x", "three.example")
    hints = online.atoll("network", "x").stderr
    assert "hint: atoll allow x one.example two.example\n" in hints
    assert "hint: atoll allow --project one.example two.example" in hints
    online.atoll("allow", "x", "one.example", "two.example")
    assert "hint:" not in online.atoll("network", "x").stderr
    # A set-up that fails because of them leaves no capsule to ask.
    online.write({"atoll.toml": '[capsule]\nsetup = ["curl -sSf -m 20 https://one.example/"]\n'})
    online.atoll("trust")
    failed = online.atoll("new", "y", check=False)
    assert failed.returncode == 1
    assert "network: 1 connection refused (one.example)" in failed.stderr
    assert "hint: atoll allow --project one.example" in failed.stderr


@as_user
def test_rule_for_the_whole_project(online):
    online.atoll("new", "x", "sealed", "--network", "allow")
    ask = "curl -sS -m 20 http://one.example/"
    assert "is not allowed" in online.sh("x", ask)
    told = online.atoll("allow", "--project", "one.example").stdout
    assert told.splitlines()[1].split() == ["one.example", "project", "one.example"]
    online.atoll("new", "later")
    for name in ("x", "later"):
        # It has no address here, which is another answer than a refusal.
        assert "is not allowed" not in online.sh(name, ask)
        sources = {one["rule"]: one["source"] for one in online.answer("allow", name)}
        assert sources["one.example"] == "project"
    # Of another project nothing is said by this.
    other = online.make_repo({"f": "1"}, name="other")
    online.atoll("new", "z", cwd=other)
    done = online.atoll("run", "z", "--", "sh", "-c", ask, cwd=other)
    assert "is not allowed" in done.stdout
    online.atoll("rm", "z", cwd=other)
    online.atoll("allow", "--project", "--revoke", "one.example")
    assert "is not allowed" in online.sh("x", ask)
    for words, code in ((["--project", "x"], USAGE), ([], USAGE),
                        (["--project", "--revoke", "one.example"], STATE),
                        (["--project", "http://one.example/"], USAGE)):  # fmt: skip
        assert online.atoll("allow", *words, check=False).returncode == code, words


@as_user
def test_failed_hook_names_the_way_around_it(person):
    person.atoll("new", "x")
    person.sh("x", "printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit; chmod +x "
              ".git/hooks/pre-commit; echo 1 > f")  # fmt: skip
    refused = person.atoll("commit", "x", "-m", "one", check=False)
    assert refused.returncode != 0
    assert "--no-verify" in refused.stderr
    person.atoll("commit", "x", "-m", "one", "--no-verify")


@as_user
def test_only_ports_that_listen_or_are_declared_are_shown(online, wait_for):
    online.atoll("new", "x")
    listen = (
        "import socket, time; kept = [socket.create_server(('127.0.0.1', p)) "
        "for p in range(4000, 4012)]; time.sleep(600)"
    )
    online.atoll("run", "x", "-d", "--", "python3", "-c", listen)
    wait_for(lambda: len(online.answer("ports", "x")["ports"]) == 12, what="twelve ports")
    online.atoll("stop", "x")
    online.atoll("run", "x", "-d", "--", "python3", "-m", "http.server", "3000")
    wait_for(
        lambda: [row["name"] for row in online.answer("ports", "x")["ports"]] == ["3000"],
        what="only the port that listens",
    )
    assert online.atoll("open", "x", "--print").stdout.startswith("http://3000.x--")


@as_user
def test_identity_is_in_the_repository_too(person):
    """Some agents run git without the settings in HOME."""
    person.atoll("new", "x")
    commit = "echo 1 > g && git add g && env GIT_CONFIG_GLOBAL=/dev/null git commit -qm g"
    person.sh("x", commit)
    expected = person.sh("x", "git config --global user.email")
    assert expected.strip()
    assert person.sh("x", "git log -1 --format=%ae") == expected
