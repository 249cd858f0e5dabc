"""A power failure at any step: what was not synced is lost, and every report is correct.

Project and home lie on a filesystem in a file. While a capsule is made, used, kept, rolled back,
forked, exported and removed, copies of that file are taken as they are on "disk" at that moment.
Each copy is then mounted in the place of the first, after another boot as far as Atoll can tell.

`lazy` is a disk on which nothing but what was synced has arrived; on an `eager` one the names and
sizes of all files have, too, but not what is in them: somebody else has called fsync.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from atoll.drivers.layers import probes
from atoll.engine.capsule import reaper
from atoll.engine.enclosure import views
from atoll.engine.history import layers, upkeep
from atoll.engine.projects import open_project
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.leases import find_damage
from atoll.host import kernel, locks
from atoll.host.process import wait_until
from atoll.testing.faults import damage_of_repository
from atoll.testing.remains import differences, portrait, timeless

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project
    from atoll.testing.remains import Portrait

pytestmark = pytest.mark.slow

END = "the end"
TOLD = {"sync", "export", "rest", "remove"}
WORK = """
set -e
echo committed > committed.txt; git add .; git commit -qm agent
git mv src lib; echo staged > app.py; git add app.py; echo changed > app.py
rm README.md; mkdir 'new dir'; echo new > 'new dir/untracked'; ln -s nowhere link
echo mine > build/own; rm build/carried
echo private > "$HOME/private"; echo scratch > "$TMPDIR/scratch"
"""
CHANGE = """
set -e
date +%N > stamp; echo more >> committed.txt; git add .; git commit -qm more; rm -rf 'new dir'
date +%N > "$HOME/private"; echo other > "$TMPDIR/other"
"""


@dataclass
class Moment:
    """One copy of the disk, and between which two known states it was taken."""

    label: str
    image: Path
    segment: int


@dataclass
class State:
    """The state, and what was reported to the owner, while nothing was running."""

    portraits: dict[str, Portrait]
    branches: dict[str, str]


@dataclass
class Story:
    """What happens until the power goes."""

    disk: Any
    git: Callable[..., str]
    is_eager: bool
    stride: int
    """Of the steps that are reached for the first time, one in so many is looked at."""
    verb: str = ""
    reached: set[str] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    points: dict[int, Portrait] = field(default_factory=dict)
    """What the snapshots of `x` hold."""

    def tell(self) -> None:
        """From nothing to nothing, through everything that a capsule can go through."""
        project = open_project(self.disk.repo, home=self.disk.home, listen=self.listen)
        self.look(project)
        for verb in (warm, new, use, keep, sync, change, keep, change, roll_back, fork, export,
                     rest, keep_busy, remove_fork, refresh, remove, collect):  # fmt: skip
            self.verb = verb.__name__
            verb(self, project)
            self.listen(END, "")
            self.verb = ""
            self.look(project)
        project.session.forkserver.close()
        project.session.store.close()

    def listen(self, step: str, _: str) -> None:
        """Every step counts once; the end of a verb that reports something always does."""
        is_told = self.verb in TOLD and step == END
        if self.verb and (is_told or step not in self.reached):
            self.reached.add(step)
            if is_told or len(self.reached) % self.stride == 0:
                self.capture(step)

    def capture(self, step: str) -> None:
        if self.is_eager:
            self.disk.commit_names()
        image = self.disk.capture(f"{len(self.moments)}")
        if image is not None:
            self.moments.append(Moment(f"{self.verb}: {step}", image, len(self.states) - 1))

    def look(self, project: Project) -> None:
        painted = {capsule.name: portrait(capsule) for capsule in project.capsules()}
        told = self.git("for-each-ref", "--format=%(refname) %(objectname)", cwd=self.disk.repo)
        branches = (line.split() for line in told.splitlines() if line.startswith("refs/heads/"))
        self.states.append(State(painted, dict(branches)))


def sh(capsule: Capsule, script: str) -> None:
    done = capsule.run(["sh", "-c", script])
    assert done.exit_code == 0, done.stderr.decode()


def warm(_: Story, project: Project) -> None:
    project.warm()


def new(_: Story, project: Project) -> None:
    project.new("x")


def use(_: Story, project: Project) -> None:
    sh(project.capsule("x"), WORK)


def keep(story: Story, project: Project) -> None:
    made = project.capsule("x").snapshot()
    story.points[made.number] = story.states[-1].portraits["x"]


def sync(_: Story, project: Project) -> None:
    upkeep.work(project.session)


def change(_: Story, project: Project) -> None:
    sh(project.capsule("x"), CHANGE)


def roll_back(story: Story, project: Project) -> None:
    capsule = project.capsule("x")
    made = capsule.rollback(capsule.require_snapshot("1"))
    story.points[made.number] = story.states[-1].portraits["x"]


def fork(_: Story, project: Project) -> None:
    project.fork(project.capsule("x"), "y", at=project.capsule("x").require_snapshot("2"))


def export(_: Story, project: Project) -> None:
    project.capsule("x").export(everything=True)


def rest(_: Story, project: Project) -> None:
    """The capsule is unused for a while: then it is synced, and reported as synced."""
    capsule = project.capsule("x")
    views.end_view(project.session, capsule.record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "IDLE_S", 0.1)
        sh(capsule, "true")
    lock = project.session.view_lock(capsule.record).path
    assert wait_until(lambda: not locks.is_locked(lock), timeout_s=30)


def keep_busy(story: Story, project: Project) -> None:
    capsule = project.capsule("x")
    run = capsule.start(RunSpec(argv=("sleep", "1000"), background=True))
    keep(story, project)
    capsule.stop(run)


def remove_fork(_: Story, project: Project) -> None:
    project.capsule("y").remove(force=True)


def refresh(story: Story, project: Project) -> None:
    """The owner has gone on, and what they did is on disk; the next capsule needs deltas."""
    repo = story.disk.repo
    (repo / "app.py").write_text("another\n")
    (repo / "build" / "more").write_text("another\n")
    story.git("commit", "--quiet", "--all", "--message", "another", cwd=repo)
    kernel.sync_filesystem(repo)
    project.new("z")


def remove(_: Story, project: Project) -> None:
    project.capsule("x").remove(force=True)
    project.capsule("z").remove(force=True)


def collect(_: Story, project: Project) -> None:
    reaper.collect(project.session)


def judge(story: Story, moment: Moment) -> set[bool]:
    """Every report is correct. Returns whether capsules were reported as unclean."""
    heard: list[str] = []
    project = open_project(story.disk.repo, home=story.disk.home, warn=heard.append)
    before, after = story.states[moment.segment : moment.segment + 2]
    capsules = {capsule.name: capsule for capsule in project.capsules()}
    kept = before.portraits.keys() & after.portraits.keys()
    assert kept <= capsules.keys() <= before.portraits.keys() | after.portraits.keys(), moment
    require_branches(story, moment)
    told = set()
    for name, capsule in capsules.items():
        allowed = [timeless(s.portraits[name]) for s in (before, after) if name in s.portraits]
        painted = timeless(portrait(capsule))
        said = [text for text in heard if f"`{name}` was in use" in text]
        told.add(bool(said))
        assert said or painted in allowed, (moment, [differences(p, painted) for p in allowed])
        require_points(story, moment, capsule, said)
    damaged = [one for one in layers.check(project.session, project.record) if one.damaged]
    # Points that were not marked as synced may be.
    assert [one for one in damaged if one.layer.id[0] not in "su"] == [], moment
    reaper.collect(project.session)
    assert find_damage(project.session.store) == [], moment
    for capsule in project.capsules():
        capsule.remove(force=True)
    assert damage_of_repository(project.record.root, story.disk.repo / ".git") == [], moment
    project.session.forkserver.close()
    project.session.store.close()
    return told


def require_branches(story: Story, moment: Moment) -> None:
    """What was said to be brought out is there, with all that belongs to it."""
    before, after = story.states[moment.segment : moment.segment + 2]
    story.git("fsck", "--connectivity-only", "--no-dangling", cwd=story.disk.repo)
    for branch in before.branches.keys() & after.branches.keys():
        stands = story.git("rev-parse", branch, cwd=story.disk.repo).strip()
        assert stands in (before.branches[branch], after.branches[branch]), (moment, branch)


def require_points(story: Story, moment: Moment, capsule: Capsule, said: list[str]) -> None:
    """The last point that is known to be on disk is offered, and each of them is."""
    synced = [snapshot for snapshot in capsule.snapshots() if snapshot.synced]
    if said and synced:
        assert f"atoll rollback {capsule.name} {synced[-1].number} " in said[0], (moment, said)
    for snapshot in synced:
        capsule.rollback(snapshot)
        found, wanted = portrait(capsule), story.points[snapshot.number]
        assert found == wanted, (moment, snapshot, differences(wanted, found))


@pytest.mark.parametrize(
    ("kind", "is_eager", "stride"),
    [
        pytest.param("ext4", True, 1, id="ext4-eager"),
        pytest.param("ext4", False, 4, id="ext4-lazy", marks=pytest.mark.soak),
        pytest.param("xfs", True, 5, id="xfs-eager", marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_power_is_cut(
    kind: str,
    is_eager: bool,
    stride: int,
    make_disk: Callable[[str], Any],
    make_project: Callable[[Path], None],
    git: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    # Nothing but what the story tells may write: a copy must be of one moment.
    monkeypatch.setattr(upkeep, "start", lambda _: None)
    disk = make_disk(kind)
    story = Story(disk, git, is_eager, stride)
    with disk.mounted():
        make_project(disk.repo)
        kernel.sync_filesystem(disk.at)
        story.tell()
    told = set()
    for number, moment in enumerate(story.moments):
        monkeypatch.setattr(probes, "boot_id", lambda number=number: f"boot {number}")
        disk.check(moment.image)
        with disk.mounted(moment.image):
            told |= judge(story, moment)
    assert told == {True, False}
