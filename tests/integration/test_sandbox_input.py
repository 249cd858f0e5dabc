"""Bad input at level `sandbox`: every one has an answer, and the capsule lives on."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from atoll.testing.conformance.bench import survey
from persons import as_user, require


@pytest.fixture
def capsule(person):
    person.atoll("new", "x")
    return person


def said_by(person, *argv, options=(), code=126):
    """What Atoll says of a command that could not be started."""
    done = person.atoll("run", *options, "x", "--", *argv, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert person.outcome("x")["reason"] == "not-started"
    return done.stderr


# Commands.


@as_user
def test_commands_that_cannot_be_started(capsule):
    capsule.sh("x", "echo text > plain; mkdir dir; printf '#!/nowhere/sh\\n' > lost; chmod +x lost")
    assert "`no-such-command`: command not found" in said_by(capsule, "no-such-command", code=127)
    assert "`./none`: no such file" in said_by(capsule, "./none", code=127)
    assert "Permission denied" in said_by(capsule, "./plain")
    assert "Permission denied" in said_by(capsule, "./dir")
    # Found on the host, but not inside.
    assert "no such file" in said_by(capsule, str(capsule.home / "atoll.db"), code=127)
    # The file itself can be executed: only the kernel knows better.
    done = capsule.atoll("run", "x", "--", "./lost", check=False)
    assert done.returncode in (126, 127, 1)
    assert "lost" in done.stderr
    assert capsule.sh("x", "echo well") == "well\n"


def test_script_without_an_interpreter_line(capsule):
    """Every shell runs it; so do levels without walls."""
    capsule.sh("x", "echo 'echo ran with $1' > script; chmod +x script")
    assert capsule.atoll("run", "x", "--", "./script", "me").stdout == "ran with me\n"


def test_very_many_arguments(capsule):
    many = ["a"] * 100_000
    script = ("sh", "-c", "echo $#; printf %s $1", "sh")
    assert capsule.atoll("run", "x", "--", *script, *many).stdout == "100000\na"
    odd = ["", " ", "a\nb", "--", "-x", "$HOME", "\udcff"]
    shown = capsule.run(
        "python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *odd, env={"LANG": "C.UTF-8"}
    ).stdout
    inside = capsule.atoll(
        "run", "x", "--", "python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *odd
    )
    assert inside.stdout == shown


@as_user
def test_large_environment(person):
    variables = {f"V{number}": "v" * 10_000 for number in range(100)}
    text = "".join(f'{name} = "{value}"\n' for name, value in variables.items())
    person.write({"atoll.toml": f"[capsule.env]\n{text}"})
    person.atoll("trust", check=False)
    person.atoll("new", "x")
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    inside = json.loads(person.atoll("run", "x", "--", "python3", "-c", script).stdout)
    assert {name: inside.get(name) for name in variables} == variables


def test_environment_that_is_too_large(person):
    """More variables than bwrap takes words, and one that the kernel does not take."""
    many = "".join(f'V{number} = "v"\n' for number in range(4000))
    person.write({"atoll.toml": f"[capsule.env]\n{many}"})
    person.atoll("trust", check=False)
    person.atoll("new", "x")
    assert "variables are more than a command can get" in said_by(person, "true")
    person.write({"atoll.toml": f'[capsule.env]\nHUGE = "{"h" * 200_000}"\n'})
    person.atoll("trust", check=False)
    refused = person.atoll("new", "y", check=False)
    assert (refused.returncode, "`capsule.env.HUGE`: is too long" in refused.stderr) == (2, True)


@as_user
def test_binary_output_passes_untouched(capsule):
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    done = capsule.atoll("run", "x", "--", "python3", "-c", script, text=False)
    assert done.stdout == bytes(range(256)) * 4096


@as_user
def test_command_that_closes_its_output_and_lingers(capsule, wait_for):
    capsule.atoll("run", "-d", "x", "--", "sh", "-c", "exec <&- >&- 2>&-; sleep 600")
    wait_for(lambda: "sleep" in str(capsule.answer("ps", "x")), what="the command")
    assert capsule.answer("show", "x")["runs"][0]["state"] == "running"
    # A daemon does not outlive the command that started it.
    capsule.sh("x", "setsid sh -c 'exec <&- >&- 2>&-; sleep 500' & echo started")
    assert "sleep 500" not in str(capsule.answer("ps", "x"))
    capsule.atoll("stop", "x", "--grace", "0.2")
    assert capsule.answer("ps", "x") == []


# Places.


@as_user
def test_places_that_are_gone(capsule):
    before = survey(capsule.repo)
    # Its parent is the capsule's own to write: other capsules must not follow it anywhere.
    moved = f"mkdir -p {capsule.place}/elsewhere"
    capsule.atoll("run", "x", "--", "sh", "-c", f"rm -rf * .git src; {moved}", check=False)
    capsule.atoll("run", "x", "--", "sh", "-c", f"rm -rf {capsule.place}; true", check=False)
    capsule.sh("x", f"ls -A; cd {capsule.repo}; pwd; mkdir -p src; touch src/new")
    assert capsule.sh("x", "ls src") == "new\n"
    capsule.atoll("new", "y")
    assert capsule.sh("y", "cat src/calc.py; git status --porcelain") == "one = 1\n"
    assert survey(capsule.repo) == before


@as_user
def test_links_planted_where_the_room_is_furnished(person):
    """HOME lies in a directory that is the capsule's own to fill, and is furnished anew."""
    person.write({".local/bin/tool": "#!/bin/sh\necho tool\n"}, root=person.place / "owner")
    (person.place / "owner/.local/bin/tool").chmod(0o755)
    victim = person.place / "victim"
    person.write({"untouched": "u\n"}, root=person.place / "owner/.pyenv")
    before = survey(person.place / "owner")
    person.atoll("new", "x")
    person.sh("x", "mkdir -p ~/new; echo 1 > ~/file; ! rm -r ~/.local ~/.pyenv 2> /dev/null")
    # Below the toolchains, where nothing is mounted, everything is theirs.
    person.sh("x", f"mv ~/.local ~/was 2> /dev/null || true; ln -sfn {victim} ~/.local || true")
    end_view(person)
    assert person.sh("x", "~/.local/bin/tool; cat ~/file") == "tool\n1\n"
    assert not victim.exists()
    assert survey(person.place / "owner") == before


def end_view(person):
    """As if the capsule had been idle for a while: the next run builds its sandbox root again."""
    [directory] = person.home.glob("projects/*/x")
    ask = (
        "import sys; from atoll.host.view_client import ask; print(ask(sys.argv[1], {'end': True}))"
    )
    assert "'runs': 0" in person.run(sys.executable, "-c", ask, directory).stdout


# Stops.


@as_user
def test_run_that_is_stopped_while_it_starts(capsule, wait_for):
    for number in range(1, 6):
        started = capsule.popen("run", "x", "--", "sleep", "600")
        wait_for(
            lambda number=number: len(capsule.answer("show", "x")["runs"]) == number,
            timeout_s=60,
            what="a run",
        )
        capsule.atoll("stop", "x", "--grace", "0")
        assert started.wait(timeout=60) == 128 + signal.SIGTERM
        started.stdout.close()
        started.stderr.close()
        assert capsule.outcome("x")["reason"] == "stopped"
    assert capsule.answer("ps", "x") == []


def test_two_who_stop_one_run(capsule, wait_for):
    script = "trap '' TERM; echo deaf; while :; do sleep 1; done"
    capsule.atoll("run", "-d", "x", "--", "sh", "-c", script)
    wait_for(lambda: "deaf" in capsule.atoll("logs", "x").stdout, what="the command")
    both = [capsule.popen("stop", "x", "--grace", "1") for _ in range(2)]
    for process in both:
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
    assert capsule.outcome("x")["reason"] == "stopped"
    assert "no active runs" in capsule.atoll("stop", "x").stderr


# Pauses.

COUNTS = "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.01; done"


def count(person):
    """What it counts to, seen from outside."""
    found = person.home.glob("pools/*/layers/u*/tree/workspace/count")
    return [path.read_text() for path in found]


@as_user
def test_pause_and_resume(capsule, wait_for):
    capsule.atoll("run", "-d", "x", "--", "sh", "-c", COUNTS)
    wait_for(lambda: count(capsule), timeout_s=60, what="a count")
    assert capsule.answer("pause", "x")["processes"] >= 1
    before = count(capsule)
    assert are_held(states(capsule))
    refused = capsule.atoll("run", "x", "--", "true", check=False)
    assert refused.returncode == 4
    assert "`x` is paused\nhint: atoll resume x" in refused.stderr
    # Paused already, and a snapshot of what is paused: both are fine, and it stays so.
    capsule.atoll("pause", "x")
    capsule.atoll("diff", "x")
    assert count(capsule) == before
    capsule.atoll("resume", "x")
    wait_for(lambda: count(capsule) != before, timeout_s=60, what="another count")
    assert capsule.sh("x", "echo well") == "well\n"


def are_held(found):
    """A parent in `vfork` cannot be stopped, and does not go on before its child does."""
    holding = {parent for state, parent in found.values() if state in "Tt"}
    return all(
        state in "TtZ" or (state == "D" and pid in holding) for pid, (state, _) in found.items()
    )


def states(person):
    """The state and the parent of each process of the capsule."""
    found = {}
    for process in person.answer("ps", "x"):
        with open(f"/proc/{process['pid']}/stat") as stream:
            state, parent = stream.read().rpartition(")")[2].split()[:2]
        found[process["pid"]] = (state, int(parent))
    return found


@pytest.mark.parametrize("how", ["stop", "rm"])
@as_user
def test_end_of_a_paused_one(capsule, wait_for, how):
    capsule.atoll("run", "-d", "x", "--", "sh", "-c", COUNTS)
    wait_for(lambda: count(capsule), timeout_s=60, what="a count")
    capsule.atoll("pause", "x")
    pids = [process["pid"] for process in capsule.answer("ps", "x")]
    if how == "stop":
        # It ends when it is asked to: nobody has the patience to wait for the kill.
        capsule.atoll("stop", "x", "--grace", "600")
        assert capsule.outcome("x")["reason"] == "stopped"
        assert capsule.sh("x", "echo well") == "well\n"
    else:
        capsule.atoll("rm", "x", "--force")
    assert pids
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


# One agent per module.


@as_user
def test_only_what_was_named_can_be_written(person):
    outside = person.place / "owner"
    person.write({"src/pay/a.py": "a\n", "src/pay/deep/b.py": "b\n", "src/other/c.py": "c\n"})
    person.write({"docs/one.md": "1\n", "docs/two.txt": "2\n"})
    (person.repo / "src/link").symlink_to("other")
    person.git("add", "-A")
    person.commit("modules")
    person.atoll("new", "x")
    attempts = """
    for path in src/pay/new src/pay/deep/b.py src/other/c.py src/link/c.py README.md new \\
        docs/one.md docs/two.txt; do
        (echo changed > $path) 2> /dev/null && echo $path
    done
    rm -rf src/other 2> /dev/null; mv src/pay src/paid 2> /dev/null
    rm src/link 2> /dev/null && echo link; cat src/other/c.py; echo t > /tmp/t; echo h > ~/h
    git status --short; git log --format=%s -1; git diff --stat | tail -1 | cut -d, -f1
    git add -A 2> /dev/null && echo added; git commit -qm done 2> /dev/null && echo committed
    """
    options = ("--write", "src/pay/**", "--write", "docs/*.md")
    said = person.sh("x", f"set +e\n{attempts}\nexit 0", options=options).splitlines()
    assert said == [
        "src/pay/new", "src/pay/deep/b.py", "docs/one.md", "c",
        " M docs/one.md", " M src/pay/deep/b.py", "?? src/pay/new", "modules",
        " 2 files changed",
    ]  # fmt: skip
    # A link that a pattern names is not followed; with it there is nothing to write.
    touch = ("x", "--", "touch", "src/other/new")
    done = person.atoll("run", "--write", "src/li*/**", *touch, check=False)
    assert done.returncode != 0
    # The next run may write all again, and tells what the last one did.
    assert person.sh("x", "echo now > README.md; ls src/other") == "c.py\n"
    assert not list(outside.iterdir())


PLANT = """
set +e
cd $1
(git config filter.e.clean evil) 2> /dev/null && echo config
(echo evil > .git/hooks/pre-commit) 2> /dev/null && echo hook
(echo evil > .git/info/attributes) 2> /dev/null && echo attributes
blob=$(echo evil | git hash-object -w --stdin 2> /dev/null) && echo object
known=$(git rev-parse HEAD:README.md)
git update-index --add --cacheinfo 100644,$known,evil 2> /dev/null && echo index
mv .git .was 2> /dev/null && echo moved
cd /tmp; (cd $2 && mv $3 elsewhere) 2> /dev/null && echo parent
exit 0
"""


@as_user
def test_a_narrowed_run_cannot_write_a_repository(person):
    person.write({"docs/a.md": "a\n"})
    person.git("add", "-A")
    person.commit("docs")
    person.atoll("new", "x")
    person.sh("x", "mkdir -p docs/sub/deep; cp -r .git docs/sub/deep; cp README.md docs/sub/deep")
    root = str(person.repo)
    options = ("--write", "docs/**")
    for place, above, name in ((".", root, "docs"), ("docs/sub/deep", f"{root}/docs", "sub")):
        words = ("sh", "-c", PLANT, "sh", place, above, name)
        done = person.atoll("run", *options, "x", "--", *words)
        assert done.stdout == "", place
        assert person.sh("x", f"cd {place}; git status > /dev/null; git log --format=%s -1",
                         options=options) == "docs\n"  # fmt: skip
    # Where a pattern names it, and in the next run, which is not narrowed, all of it works.
    words = ("sh", "-c", PLANT, "sh", ".", root, "docs")
    all_of_it = ["config", "hook", "attributes", "object", "index", "moved"]
    done = person.atoll("run", "--write", ".git/**", "x", "--", *words)
    assert done.stdout.split() == all_of_it[:-1]
    done = person.atoll("run", "x", "--", *words)
    assert done.stdout.split() == [*all_of_it, "parent"]


@as_user
def test_a_repository_elsewhere_is_not_narrowed(person):
    person.write({"docs/a.md": "a\n"})
    person.git("add", "-A")
    person.commit("docs")
    person.atoll("new", "x")
    person.sh("x", "mv .git docs/repository; ln -s docs/repository .git")
    done = person.atoll("run", "--write", "docs/**", "x", "--", "true", check=False)
    assert done.returncode == 126
    assert "`.git` is not a directory" in done.stderr


def test_patterns_that_make_no_sense(capsule):
    for pattern, complaint in {
        "nothing/**": "`nothing/**` matches nothing in the workspace",
        "../up": "`../up` is not a path in the workspace",
        "/": "`/` is not a path in the workspace",
    }.items():
        assert complaint in said_by(capsule, "touch", "ran", options=("--write", pattern))
    assert capsule.sh("x", "ls") == "README.md\nsrc\n"
    capsule.sh("x", "mkdir many; cd many; for i in $(seq 600); do : > f$i; done")
    assert "too many" in said_by(capsule, "true", options=("--write", "many/*"))


def test_without_walls_nothing_is_narrowed(person):
    person.atoll("new", "plain", "--level", "clone")
    done = person.atoll("run", "--write", "src/**", "plain", "--", "touch", "ran", check=False)
    assert done.returncode == 6
    assert "needs level `sandbox`" in done.stderr
    assert person.sh("plain", "ls") == "README.md\nsrc\n"
    require("bwrap")
