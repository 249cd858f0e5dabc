from __future__ import annotations

import pytest

from atoll.model.state import WHOLE, Outcome, Reason, Run, RunState, Work


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(reason=Reason.EXITED, exit_code=0), 0),
        (Outcome(reason=Reason.EXITED, exit_code=7), 7),
        (Outcome(reason=Reason.EXITED, exit_code=255), 255),
        (Outcome(reason=Reason.SIGNALLED, signal=11), 139),
        (Outcome(reason=Reason.SIGNALLED, signal=9), 137),
        (Outcome(reason=Reason.TIMEOUT, signal=15), 124),
        (Outcome(reason=Reason.TIMEOUT, exit_code=0), 124),
        (Outcome(reason=Reason.STOPPED, signal=15), 143),
        (Outcome(reason=Reason.STOPPED, signal=9), 143),
        (Outcome(reason=Reason.HANGUP), 129),
        (Outcome(reason=Reason.OUTPUT), 137),
        (Outcome(reason=Reason.LOST), 137),
        (Outcome(reason=Reason.NOT_STARTED, exit_code=127), 127),
        (Outcome(reason=Reason.NOT_STARTED, exit_code=126), 126),
        (Outcome(reason=Reason.NOT_STARTED), 137),
    ],
)
def test_code_that_a_shell_would_show(outcome, code):
    assert outcome.shell_code == code


@pytest.mark.parametrize("reason", Reason)
def test_only_a_clean_exit_is_good(reason):
    assert Outcome(reason=reason, exit_code=0).good == (reason is Reason.EXITED)
    assert not Outcome(reason=reason, exit_code=1).good
    assert not Outcome(reason=reason).good


def test_run_has_a_label():
    run = Run(
        id=9,
        capsule_id=1,
        capsule_name="fix-auth",
        number=2,
        token="t",
        argv=("true",),
        state=RunState.RUNNING,
        background=False,
        tty=False,
        directory="/d",
        created_at=0.0,
    )
    assert run.label == "fix-auth.2"


@pytest.mark.parametrize(
    ("work", "is_any"),
    [
        (Work(), False),
        (Work(ignored=9), False),
        (Work(uncommitted=("a",)), True),
        (Work(untracked=("a",)), True),
        (Work(nested=("a/",)), True),
        (Work(unstorable=("a",)), True),
        (Work(commits=1), True),
        (Work(large=("a",)), True),
        (Work(stashes=1), True),
    ],
)
def test_build_products_are_no_work(work, is_any):
    assert work.any == is_any
    assert bool(work.render()) == is_any


def test_work_in_words():
    work = Work(uncommitted=("a", "b", "c", "d", "e"), untracked=("n",), nested=("v/",), commits=1)
    assert work.render() == [
        "5 uncommitted: `a`, `b`, `c` and 2 more",
        "1 untracked: `n`",
        "1 nested repository: `v/`",
        "1 commit that no other branch holds",
    ]
    assert Work(nested=("lib", "lib/deep", "v/")).render() == [
        "2 changed submodules: `lib`, `lib/deep`",
        "1 nested repository: `v/`",
    ]
    assert Work(unstorable=("a",)).render() == ["1 file that git cannot store: `a`"]
    assert Work(large=("a.bin",)).render() == ["1 Git LFS object not imported: `a.bin`"]
    assert Work(nested=WHOLE, large=WHOLE).render() == [
        "its files, which cannot be compared with a commit"
    ]
    assert Work(commits=2, off_branch=2, fetched=2).render() == [
        "2 commits that no other branch holds, only remote-tracking branches inside",
    ]
    assert Work(commits=3, off_branch=1, stashes=2).render() == [
        "2 commits that no other branch holds",
        "1 commit that no other branch holds, outside the capsule's branch",
        "2 stash entries",
    ]
    assert Work(commits=2).render() == ["2 commits that no other branch holds"]


def test_file_names_from_inside_move_no_cursor():
    (line,) = Work(untracked=("\x1b]52;c;eA==\x07", "a\nb")).render()
    assert line.isprintable()
