"""The bench without measuring: rows and aims, generated projects, and places that go away."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from atoll.engine.bench import place, projects, table
from atoll.engine.bench.projects import SHAPES
from atoll.engine.bench.table import Row, at_most, at_most_times, times_faster
from atoll.engine.bench.workspace import BenchOptions
from atoll.host import locks
from atoll.model.errors import PrerequisiteError, StateError
from present import present

SMALL = SHAPES["M"].scaled(0.005)


def row(*samples, peer=(), aim=None, unit="s"):
    return Row("S", "what", samples, "peer" if peer else "", peer, aim, unit)


# Rows


def test_row_sums_its_samples_up():
    one = row(0.004, 0.001, 0.002, peer=(0.5, 0.1, 0.9))
    assert (one.median, one.best, one.p95) == (0.002, 0.001, 0.004)
    assert (one.peer_median, one.ratio) == (0.5, 0.004)


def test_p95_leaves_one_in_twenty_out():
    assert row(*range(1, 21)).p95 == 19
    assert row(*range(1, 101)).p95 == 95


def test_row_without_peer_has_no_ratio():
    assert row(1.0).ratio is None
    assert row(1.0, aim=at_most_times(3)).is_met is None


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (row(0.020, aim=at_most(0.030)), True),
        (row(0.031, aim=at_most(0.030)), False),
        (row(0.003, peer=(0.001,), aim=at_most_times(3)), True),
        (row(0.0031, peer=(0.001,), aim=at_most_times(3)), False),
        (row(0.01, peer=(5.0,), aim=times_faster(500)), True),
        (row(0.01, peer=(4.9,), aim=times_faster(500)), False),
        (row(0, aim=at_most(0, "files"), unit="files"), True),
        (row(1, aim=at_most(0, "files"), unit="files"), False),
    ],
)
def test_aims_are_judged_by_medians(one, met):
    assert one.is_met is met
    assert one.verdict == ("ok" if met else "missed")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00031, "s", "0.31 ms"),
        (0.25, "s", "250 ms"),
        (12.3, "s", "12.30 s"),
        (48_000, "B", "48 kB"),
        (1_600_000_000, "B", "1.6 GB"),
        (70_001, "files", "70,001 files"),
    ],
)
def test_values_as_people_read_them(value, unit, text):
    assert table.render_value(value, unit) == text


def test_cells_tell_how_much_faster():
    shown = table.cells([row(0.01, peer=(20.0,)), row(0.2, peer=(0.1,)), row(0.1, peer=(0.4,))])
    assert [cells[7] for cells in shown] == ["2,000x faster", "2.00x", "4.0x faster"]
    assert all(len(cells) == len(table.COLUMNS) for cells in shown)


def test_report_is_json_and_has_all_samples():
    machine = table.Machine(
        processor="cpu", cores=2, memory_bytes=1, kernel="Linux", filesystem="ext4", user="root",
        driver="overlay", git="2.39", python="3.11", load_before=(5.0, 1.0, 1.0),
        load_after=(1.0, 1.0, 1.0),
    )  # fmt: skip
    report = table.BenchReport(machine, ("S: 500 files",), (row(1.0, 3.0, aim=at_most(1)),), ())
    shape = json.loads(json.dumps(report.shape()))
    assert shape["rows"][0]["samples"] == [1.0, 3.0]
    assert shape["rows"][0]["met"] is False
    assert any("others are busy" in line for line in report.head())


# Projects


def test_sizes_are_those_of_the_issue():
    assert (SHAPES["S"].files, SHAPES["S"].tracked) == (500, 500)
    assert (SHAPES["M"].tracked, SHAPES["M"].modules, SHAPES["M"].venv) == (5_000, 60_000, 6_000)
    assert SHAPES["M"].size_bytes == pytest.approx(1.6e9, rel=0.1)
    assert (SHAPES["L"].files, SHAPES["L"].tracked) == (300_000, 200_000)


def test_packages_have_the_spread_of_real_ones():
    paths = list(projects._module_files(SHAPES["M"]))
    assert len(paths) == len(set(paths)) == 60_000
    scoped = (path.split("/") for path in paths[1:])
    counts = Counter("/".join(p[:2]) if p[0][0] == "@" else p[0] for p in scoped)
    sizes = sorted(counts.values())
    assert 1_100 <= len(sizes) <= 1_200
    assert sizes[0] <= 10
    assert sizes[-1] > 1_000


def test_contents_have_the_mean_that_was_asked_for():
    contents = projects._contents(2, 13_000)
    assert sum(map(len, contents)) / len(contents) == pytest.approx(13_000, rel=0.01)


def digest(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and ".git" not in path.parts
    }


@pytest.mark.usefixtures("atoll_home")
def test_the_same_project_is_made_twice(tmp_path, git):
    one = projects.generate(SMALL, tmp_path / "one")
    two = projects.generate(SMALL, tmp_path / "two")
    assert digest(one.root) == digest(two.root)
    assert len(digest(one.root)) == SMALL.files
    heads = {git("rev-parse", "HEAD", cwd=made.root) for made in (one, two)}
    assert len(heads) == 1
    assert git("status", "--porcelain", cwd=one.root) == ""
    ignored = git("status", "--porcelain", "--ignored", cwd=one.root).split()
    assert {"node_modules/", ".venv/", "build/"} <= set(ignored)


@pytest.mark.usefixtures("atoll_home")
def test_kept_project_is_used_again_only_if_it_is_the_same(tmp_path):
    assert projects.reuse(SMALL, tmp_path / "kept") is None
    projects.generate(SMALL, tmp_path / "kept")
    assert projects.reuse(SMALL, tmp_path / "kept") == (SMALL, tmp_path / "kept")
    with pytest.raises(StateError):
        projects.reuse(SHAPES["M"].scaled(0.006), tmp_path / "kept")


def test_scaled_shapes_do_not_pass_for_whole_ones():
    assert SHAPES["M"].scaled(1) is SHAPES["M"]
    assert SMALL.name != "M"
    assert [shape.name for shape in BenchOptions(sizes=("L", "S")).shapes()] == ["S", "L"]


# Places


def test_too_little_space_is_reported_before_anything_is_made(tmp_path):
    place.require_room(tmp_path, 1, 1)
    with pytest.raises(PrerequisiteError, match=r"needs .* are free") as told:
        place.require_room(tmp_path, 1 << 60, 1)
    assert "--place" in present(told.value.hint)
    with pytest.raises(PrerequisiteError, match="inodes"):
        place.require_room(tmp_path, 1, 1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_place_goes_away_also_on_failure(tmp_path):
    def fail() -> None:
        with place.throwaway(tmp_path) as made:
            (made / "deep" / "er").mkdir(parents=True)
            os.chmod(made / "deep", 0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_bench_left_is_removed_by_the_next(tmp_path):
    names = ("atoll-bench-stale", "atoll-bench-living", "atoll-bench-of-mine")
    stale, living, foreign = (tmp_path / name for name in names)
    for made in (stale, living, foreign):
        (made / "home").mkdir(parents=True)
    stale.with_suffix(".lock").touch()
    lock = locks.Lock(living.with_suffix(".lock"))
    lock.acquire()
    with place.throwaway(tmp_path):
        assert not stale.exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        "atoll-bench-living",
        "atoll-bench-living.lock",
        "atoll-bench-of-mine",
    }
    lock.release()
