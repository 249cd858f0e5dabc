"""What Atoll asks inside of a capsule is a run of it: bounded, narrowed, and gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.engine.project.levels import LEVELS, find_problems
from atoll.engine.projects import open_project
from atoll.engine.run import internal_runs
from atoll.engine.run.runs import RunSpec
from atoll.host import procfs
from atoll.model.errors import StateError, Unanswered

pytestmark = pytest.mark.quick

# Two forks, a session of its own, no environment; writes its pid, then sleeps.
DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.closerange(0, 100)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
"""


@pytest.fixture
def capsule(repo, atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    atoll_home.mkdir()
    level = next(level for level in LEVELS if level.name == "sandbox")
    if problems := find_problems(level, atoll_home):
        reason = f"no walls can be built here: {problems}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    made = open_project(repo, background=False, warn=lambda _: None).new("x")
    yield made
    made.remove(force=True)


def ask(capsule, *argv, **options):
    return internal_runs.ask(capsule.session, capsule.record, argv, **options)


def narrowed(capsule, argv=("true",), **options):
    run = capsule.start(RunSpec(argv=argv, **options))
    assert capsule.follow(run).exit_code == 0


def sleepers(seconds):
    return [p for p in procfs.processes().values() if p.command == f"sleep {seconds}"]


def test_answers_and_leaves_nothing(capsule):
    script = 'cat; echo "$WORD" >&2; ls /proc/self/fd; exit 3'
    done = ask(capsule, "sh", "-c", script, stdin=b"given\n", env={"WORD": "said"})
    assert (done.code, done.stderr) == (3, b"said\n")
    assert done.stdout == b"given\n0\n1\n2\n3\n"  # the last is the listing's own
    assert ask(capsule, "no-such-program").code == 127
    assert capsule.runs() == []
    assert not list(Path(capsule.record.directory, "runs").iterdir())


def test_time_and_output_are_bounded(capsule):
    with pytest.raises(Unanswered, match="timeout"):
        ask(capsule, "sleep", "1000", timeout_s=0.1)
    with pytest.raises(Unanswered, match="1000000"):
        ask(capsule, "yes", limit_bytes=1_000_000)
    assert capsule.runs() == []
    assert capsule.processes() == []


def test_a_daemon_does_not_outlive_it(capsule):
    seconds = str(100_000 + os.getpid())
    # The control: in a run that goes on, it lives.
    run = capsule.start(RunSpec(argv=("sh", "-c", f"python3 -c '{DAEMON}' {seconds}; sleep 1000"),
                                background=True))  # fmt: skip
    log = capsule.log(run, follow=True)
    assert next(log).data
    assert len(sleepers(seconds)) == 1
    capsule.stop()
    assert not sleepers(seconds)
    assert ask(capsule, "python3", "-c", DAEMON, seconds).code == 0
    assert not sleepers(seconds)


def test_no_more_network_than_the_narrowest_run(capsule):
    def devices():
        lines = ask(capsule, "cat", "/proc/net/dev").stdout.decode().splitlines()[2:]
        return sorted(line.split(":")[0].strip() for line in lines)

    def network():
        return ask(capsule, "readlink", "/proc/self/ns/net").stdout

    own = network()
    assert network() == own
    narrowed(capsule, network="none")
    assert network() != own
    assert devices() == ["lo"]


def test_no_more_files_than_the_narrowest_run(capsule):
    def can_write(path, **options):
        return ask(capsule, "touch", path, **options).code == 0

    ask(capsule, "mkdir", "docs", "src")
    assert can_write("src/new")
    assert can_write(".git/new")
    narrowed(capsule, write=("docs/**",))
    assert can_write("docs/new")
    assert not can_write("src/newer")
    assert not can_write(".git/newer")
    assert can_write(".git/newer", also_write=(".git/**",))
    assert not can_write("src/newer", also_write=(".git/**",))
    narrowed(capsule, write=("docs/**",))
    assert can_write("docs/newer")
    narrowed(capsule, write=("src/**",))
    with pytest.raises(StateError, match="--write"):
        can_write("docs/newest")
    # What runs of either kind prepared may write in neither's place.
    assert can_write(".git/newest", also_write=(".git/**",))
    assert not can_write("docs/newest", also_write=(".git/**",))
    assert not can_write("src/newest", also_write=(".git/**",))


def test_work_of_runs_that_were_narrowed_differently_can_be_committed(capsule, repo, git):
    ask(capsule, "mkdir", "docs", "src")
    ask(capsule, "touch", "docs/a", "src/a")
    for place in ("docs", "src"):
        narrowed(capsule, write=(f"{place}/**",), argv=("sh", "-c", f"echo {place} > {place}/a"))
    made = capsule.commit("both")
    assert git("rev-parse", "atoll/x", cwd=repo).strip() == made
    # The capsule's own branch has followed, so that nothing is left to commit.
    run = capsule.run(["git", "rev-parse", "HEAD"])
    assert run.stdout.decode().strip() == made
    with pytest.raises(StateError, match="nothing to commit"):
        capsule.commit("again")


PLANTED = ("reference-transaction", "pre-commit", "commit-msg", "post-index-change")
PLANT = (
    "mkdir ~/h; for n in {}; do printf '#!/bin/sh\\ntouch .git/written; true' >~/h/$n; done; "
    "chmod +x ~/h/*; git config --global core.hooksPath ~/h; echo changed >docs/a"
).format(" ".join(PLANTED))


@pytest.mark.parametrize("other", [None, "src/**"])
@pytest.mark.parametrize("has_hooks", [True, False])
def test_what_a_narrowed_run_prepared_cannot_write_the_repository(capsule, other, has_hooks):
    """By a configuration in its HOME that names hooks."""
    hooks = "cd .git/hooks; echo 'exit 0' >pre-commit; cp pre-commit commit-msg; chmod +x *"
    ask(capsule, "sh", "-c", f"mkdir docs src; touch docs/a; {hooks if has_hooks else 'true'}")
    narrowed(capsule, ("sh", "-c", PLANT), write=("docs/**",))
    if other is not None:
        narrowed(capsule, write=(other,))
    is_refused = has_hooks and other is not None
    if is_refused:
        with pytest.raises(StateError, match="--write"):
            capsule.commit("mine")
    made = capsule.commit("mine", verify=not is_refused)

    def was_written():
        return capsule.run(["test", "-e", ".git/written"]).exit_code == 0

    assert not was_written()
    # As a control: in a run of the owner's choice these hooks can do it.
    script = "git rev-parse HEAD; git commit -q --allow-empty -m x"
    done = capsule.run(["sh", "-c", script])
    assert (done.exit_code, done.stdout.decode().strip()) == (0, made)
    assert was_written()


def test_a_commit_that_the_capsule_cannot_take_is_made_and_reported(capsule, repo, git):
    said: list[str] = []
    capsule.session.warn = said.append
    ask(capsule, "touch", "new", ".git/index.lock")
    made = capsule.commit("new")
    assert git("rev-parse", "atoll/x", cwd=repo).strip() == made
    assert len(said) == 1
    assert "itself could not be updated" in said[0]


def test_a_fork_inherits_how_runs_were_narrowed(capsule, repo):
    ask(capsule, "mkdir", "docs")
    narrowed(capsule, write=("docs/**",), network="none")
    project = open_project(repo, background=False, warn=lambda _: None)
    made = project.fork(capsule, "y")
    try:
        assert internal_runs.narrowest(made.session, made.record) == ("none", ("docs/**",))
        assert ask(made, "touch", "README.md").code != 0
    finally:
        made.remove(force=True)


def test_a_paused_capsule_is_not_asked(capsule):
    capsule.pause()
    with pytest.raises(StateError, match="paused"):
        ask(capsule, "true")
    capsule.resume()
    assert ask(capsule, "true").code == 0


def test_a_paused_capsule_is_not_committed(capsule, repo, git):
    """Its own branch could not follow."""
    ask(capsule, "touch", "new")
    capsule.pause()
    before = git("for-each-ref", cwd=repo)
    with pytest.raises(StateError, match="paused"):
        capsule.commit("new")
    assert git("for-each-ref", cwd=repo) == before
    capsule.resume()
    made = capsule.commit("new")
    assert git("rev-parse", "atoll/x", cwd=repo).strip() == made
