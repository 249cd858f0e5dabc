"""Many commands on capsules with layers at once: each succeeds or says why, and all stay whole."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from atoll.drivers.layers.pool import Pool
from atoll.engine.capsule import reaper
from atoll.engine.history import upkeep
from atoll.engine.projects import open_project
from atoll.model.errors import StateError
from atoll.testing.remains import differences, timeless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from atoll.engine.projects import Project
    from faults.conftest import Clones

pytestmark = pytest.mark.slow

DEADLINE_S = 120


class Ended(NamedTuple):
    what: str
    error: BaseException | None


def together(clones: Clones, acts: Sequence[tuple[str, Callable[[Project], Any]]]) -> list[Ended]:
    """Does all of these at the same moment, each as a session of its own would."""
    ended: list[Ended] = []
    gate = threading.Barrier(len(acts))

    def do(what: str, act: Callable[[Project], Any]) -> None:
        try:
            with closing(clones) as project:
                gate.wait(DEADLINE_S)
                act(project)
        except BaseException as error:  # noqa: BLE001 - judged by the test
            ended.append(Ended(what, error))
        else:
            ended.append(Ended(what, None))

    threads = [threading.Thread(target=do, args=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), ended
    return ended


@contextlib.contextmanager
def closing(clones: Clones) -> Iterator[Project]:
    """A session that ends here and now: an error may keep it for much longer in its traceback."""
    project = open_project(clones.repo, warn=lambda _: None)
    try:
        yield project
    finally:
        project.session.forkserver.close()


def unclean(ended: Sequence[Ended]) -> list[Ended]:
    """Those that failed in another way than by saying what is in the way."""
    return [one for one in ended if one.error is not None and type(one.error) is not StateError]


RUN = ("sh", "-c", "echo ran > ran; sleep 0.02")
VERBS: dict[str, Callable[[Project], Any]] = {
    "run": lambda project: project.capsule("x").run(RUN),
    "snapshot": lambda project: project.capsule("x").snapshot(),
    "rollback": lambda project: project.capsule("x").rollback(
        project.capsule("x").require_snapshot("1")
    ),
    "fork": lambda project: project.fork(project.capsule("x"), "y"),
    "export": lambda project: project.capsule("x").export(everything=True),
    "rm": lambda project: project.capsule("x").remove(force=True),
}


PAIRS = list(itertools.combinations_with_replacement(VERBS, 2))
random.Random(0).shuffle(PAIRS)


@pytest.mark.parametrize("half", range(2))
def test_two_commands_on_one_capsule(clones: Clones, half: int) -> None:
    """In all pairs, each with itself, too: nothing is mixed, and the loser reports it."""
    before: Any = None
    for pair in PAIRS[half::2]:
        if "x" not in clones.names():
            clones.atoll("new", "x")
            clones.sh(clones.WORK)
            before = clones.portrait()
            clones.atoll("snapshot", "x")
        ended = together(clones, [(verb, VERBS[verb]) for verb in pair])
        assert unclean(ended) == [], pair
        assert None in [one.error for one in ended], pair
        names = clones.names()
        if "x" in names:
            assert without_run(clones.portrait()) == without_run(before), (
                pair,
                differences(before, clones.portrait()),
            )
        if "y" in names:
            clones.atoll("rm", "y", "--force")
        clones.drop_points()
    clones.check(f"half {half}")
    clones.clear()


def without_run(painted: Any) -> Any:
    files = {name: entry for name, entry in painted["workspace"].items() if name != "ran"}
    status = [line for line in painted["status"][1].splitlines() if line != "? ran"]
    return {**painted, "workspace": files, "status": status}


def test_many_made_at_once_on_a_cold_base(clones: Clones, at_once: Callable[..., Any]) -> None:
    names = [f"c{number}" for number in range(10)]
    done = at_once(*(["new", name] for name in names))
    assert [one for one in done if one.code != 0] == []
    assert clones.names() == set(names)
    painted = [like(clones.portrait(name)) for name in names[::4]]
    assert painted == painted[:1] * len(painted)
    clones.check("many")
    with closing(clones) as project:
        layers = Pool(project.session.pool(project.record.id)).all()
    kinds = [layer[0] for layer in layers if layer[0] != "u"]
    assert sorted(kinds) == ["c", "d", "g"], layers
    clones.clear()


def like(painted: Any) -> Any:
    """What is the same in all new capsules: all but the name of the branch."""
    painted = timeless(painted)
    files = {n: e for n, e in painted["workspace"].items() if not n.startswith(".git/")}
    return [files, *(painted[part] for part in ("home", "tmp", "index", "status", "sound"))]


def test_collection_while_others_come_and_go(clones: Clones) -> None:
    stop = threading.Event()

    def collect(project: Project) -> None:
        while not stop.is_set():
            reaper.collect(project.session)

    def live(name: str) -> Callable[[Project], None]:
        def act(project: Project) -> None:
            for turn in range(2):
                capsule = project.new(name)
                assert capsule.run(("sh", "-c", "echo 1 > f")).exit_code == 0
                point = capsule.snapshot()
                assert capsule.run(("sh", "-c", "echo 2 > f")).exit_code == 0
                fork = project.fork(capsule, f"{name}-fork", at=point)
                assert capsule.run(("cat", "f")).stdout == b"2\n"
                assert fork.run(("cat", "f", "build/carried")).stdout == b"1\ndependency\n", turn
                capsule.remove(force=True)
                assert fork.run(("cat", "f", "app.py")).stdout == b"1\nprint('hello')\n", turn
                fork.remove(force=True)

        return act

    lives = [("live", live(f"c{number}")) for number in range(2)]
    done = threading.Semaphore(0)

    def counted(act: Callable[[Project], Any]) -> Callable[[Project], None]:
        def run(project: Project) -> None:
            try:
                act(project)
            finally:
                done.release()

        return run

    def watch(_: Project) -> None:
        for _life in lives:
            done.acquire()
        stop.set()

    ended = together(
        clones,
        [*((what, counted(act)) for what, act in lives), ("gc", collect), ("gc", collect),
         ("watch", watch)],
    )  # fmt: skip
    assert [one for one in ended if one.error is not None] == []
    clones.clear()


def test_many_forks_of_a_capsule_that_is_removed(clones: Clones) -> None:
    clones.atoll("new", "x")
    clones.sh(clones.WORK)
    clones.atoll("snapshot", "x")
    wanted = clones.portrait()["workspace"]["new dir/tool"]

    def fork(name: str) -> Callable[[Project], Any]:
        return lambda p: p.fork(p.capsule("x"), name, at=p.capsule("x").require_snapshot("1"))

    acts = [(f"y{number}", fork(f"y{number}")) for number in range(8)]
    ended = together(clones, [*acts[:5], ("rm", VERBS["rm"]), *acts[5:]])
    assert unclean(ended) == []
    made = {one.what for one in ended if one.error is None} - {"rm"}
    names = clones.names()
    assert names - {"x"} == made
    assert ("x" in names) == any(one.what == "rm" and one.error for one in ended)
    for name in sorted(made)[::5]:
        assert clones.portrait(name)["workspace"]["new dir/tool"] == wanted
    clones.check("forks", exported=names)
    clones.clear()


def test_more_snapshots_than_one_mount_can_name(clones: Clones) -> None:
    many = upkeep.TOO_DEEP + 24
    clones.atoll("new", "x")
    with closing(clones) as project:
        capsule = project.capsule("x")
        for number in range(1, many + 1):
            if number % 10 == 1:
                script = f"mkdir d{number}; echo {number} > last"
                assert capsule.run(("sh", "-c", script)).exit_code == 0
            capsule.snapshot(str(number))
        assert [s.number for s in capsule.snapshots()] == list(range(1, many + 1))
        for number in (many // 2, many - 1):
            capsule.rollback(capsule.require_snapshot(str(number)))
            assert capsule.run(("cat", "last")).stdout == last(number)
        assert len(capsule.timeline(count=5)) == 5
        fork = project.fork(capsule, "y", at=capsule.require_snapshot("20"))
        assert fork.run(("cat", "last")).stdout == last(20)
        assert fork.run(("sh", "-c", "ls -d d*")).stdout.split() == [b"d1", b"d11"]
        upkeep.work(project.session)
        assert fork.run(("cat", "last")).stdout == last(20)
    clones.clear()


def last(number: int) -> bytes:
    """What was written last before this snapshot."""
    return f"{(number - 1) // 10 * 10 + 1}\n".encode()


def test_many_made_listed_and_removed_at_once(clones: Clones) -> None:
    clones.atoll("new", "c", "-n", "40")
    names = clones.names()
    assert names == {f"c-{number}" for number in range(1, 41)}
    assert len({capsule["ports"]["web"] for capsule in clones.ask("ls")}) == 40
    clones.atoll("rm", *names)
    assert clones.names() == set()
    assert clones.points() == []
    clones.clear()
