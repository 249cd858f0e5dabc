"""Landing: a branch of the owner's moves from one commit to another, with the checkout that has it.

The branch is locked at its old commit before a file is touched, and moves when the files and the
index are there. The caller has stored the landing before, so one that was killed in the middle is
completed from any step. Works on plain repositories: nothing here knows capsules.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from atoll.engine.promotion import checkout_update, checkouts
from atoll.engine.promotion.checkout_update import CheckoutUpdate, Reach
from atoll.engine.promotion.checkouts import WorkingTree
from atoll.host import git, ref_transaction
from atoll.host.process import wait_until
from atoll.model.errors import DriverError, StateError
from atoll.model.names import printable

_BUSY_S = 2.0


class Landing(NamedTuple):
    """One move of a branch, or of the files of the checkout that has it."""

    repository: str
    ref: str
    old: str
    new: str
    message: str
    """For the reflog."""
    is_patch: bool = False
    """Whether only the files of the checkout change, and neither the branch nor the index."""
    index_at: str = ""
    """Of a patch: where the branch and the index are."""
    place: str = ""
    """The checkout whose files an earlier try may have changed."""

    @property
    def branch(self) -> str:
        return self.ref.removeprefix("refs/heads/")


class BranchMovedError(StateError):
    """The branch is at another commit than the one that the landing starts from."""

    def __init__(self, landing: Landing, found: str | None) -> None:
        where = "gone" if found is None else f"at {found[:10]}"
        super().__init__(
            f"the branch `{printable(landing.branch)}` is {where}, not at {landing.old[:10]} any "
            "more",
            hint=f"git log {printable(landing.branch)}",
        )
        self.found = found


def land(landing: Landing, *, is_resumed: bool, note: Callable[[str], None], reach: Reach) -> str:
    """Moves the branch, and returns the checkout whose files changed; empty when there is none.

    `note` stores which checkout that will be, before it is touched. Raises BranchMovedError,
    StateError when the owner's work or an operation of git's is in the way, DriverError.
    """
    with ExitStack() as stack:
        turn = stack.enter_context(git.turn(landing.repository))
        if is_resumed and landing.place:
            _clean_up(landing)
        found = git.find_ref(landing.ref, cwd=landing.repository)
        if not landing.is_patch and found == landing.new:
            # The branch moves last.
            return landing.place
        place = _find_place(landing)
        if is_resumed and landing.place:
            _require_same_place(landing, place, found)
        expected = landing.index_at if landing.is_patch else landing.old
        if found != expected:
            raise BranchMovedError(landing._replace(old=expected), found)
        _change(landing, place, stack, turn, is_resumed=is_resumed, note=note, reach=reach)
        return "" if place is None else place.root


def _find_place(landing: Landing) -> WorkingTree | None:
    place = checkouts.find_checkout_of(landing.ref, landing.repository)
    if place is None and landing.is_patch:
        raise StateError(
            f"the branch `{printable(landing.branch)}` is not checked out, so there are no files "
            "to patch",
            hint=f"git switch {printable(landing.branch)}",
        )
    return place


def _change(  # noqa: PLR0913 - a landing and where it is
    landing: Landing,
    place: WorkingTree | None,
    stack: ExitStack,
    turn: int,
    *,
    is_resumed: bool,
    note: Callable[[str], None],
    reach: Reach,
) -> None:
    try:
        change = stack.enter_context(
            ref_transaction.prepared(
                landing.ref,
                old=landing.index_at if landing.is_patch else landing.old,
                new=None if landing.is_patch else landing.new,
                repository=landing.repository,
                cwd=landing.repository if place is None else place.root,
                message=landing.message,
            )
        )
    except ref_transaction.RefBusyError as error:
        raise _explained(landing, error) from error
    update = None
    if place is not None:
        if landing.place != place.root:
            note(place.root)
        stack.enter_context(checkout_update.index_locked(place))
        _require_on_branch(landing, place)
        update = CheckoutUpdate(
            place, landing.repository, landing.old, landing.new,
            keeps_index=landing.is_patch, index_at=landing.index_at,
        )  # fmt: skip
        try:
            if is_resumed and landing.place == place.root:
                checkout_update.resume(update, turn=turn, reach=reach)
            else:
                checkout_update.start(update, turn=turn, reach=reach)
        except BaseException:
            checkout_update.discard_copies(update)
            raise
        checkout_update.finish(update)
        reach("indexed")
    change.commit()
    reach("landed")


def _explained(landing: Landing, error: DriverError) -> StateError:
    """Why a branch cannot be locked."""
    found = git.find_ref(landing.ref, cwd=landing.repository)
    expected = landing.index_at if landing.is_patch else landing.old
    if found != expected:
        return BranchMovedError(landing._replace(old=expected), found)
    lock = Path(landing.repository, f"{landing.ref}.lock")
    if lock.exists() and not wait_until(lambda: not lock.exists(), timeout_s=_BUSY_S):
        age_s = max(0.0, time.time() - os.lstat(lock).st_mtime)
        return StateError(
            f"the branch `{printable(landing.branch)}` has been locked for {age_s:.0f} s, by "
            "another git or by one that was killed",
            hint=f"if no git is running: rm '{lock}'",
        )
    return StateError(
        f"the branch `{printable(landing.branch)}` is busy: {error.message}", hint="try again"
    )


def _require_on_branch(landing: Landing, place: WorkingTree) -> None:
    """The branch and HEAD are locked by now, so that this stays true."""
    head = git.git("symbolic-ref", "--quiet", "HEAD", cwd=place.root, allowed=(0, 1))
    if head.text.strip() != landing.ref:
        raise StateError(
            f"`{printable(place.root)}` was switched to another branch at this moment",
            hint="try again",
        )


def _tree_of(root: str, repository: str) -> WorkingTree | None:
    found = [tree for tree in checkouts.find_checkouts(repository) if tree.root == root]
    return found[0] if found and found[0].git_dir else None


def _clean_up(landing: Landing) -> None:
    """Removes locks and copies that a killed landing left in git's directory of its checkout."""
    place = _tree_of(landing.place, landing.repository)
    if place is not None:
        checkout_update.discard_remains(place)


def _require_same_place(landing: Landing, place: WorkingTree | None, found: str | None) -> None:
    """Raises StateError when files that the killed landing changed are in a checkout that has
    another branch now, or whose branch has moved.
    """
    expected = landing.index_at if landing.is_patch else landing.old
    if place is not None and place.root == landing.place and found == expected:
        return
    if is_untouched(landing):
        return
    shown = printable(landing.place)
    moved = "the branch has moved" if found != expected else "it has another branch now"
    raise StateError(
        f"a landing of {landing.new[:10]} on `{printable(landing.branch)}` was killed while it "
        f"changed the files at `{shown}`, and {moved}: some files there are as at "
        f"{landing.new[:10]}",
        hint=f"git -C '{shown}' status; undo or commit these changes, then run this again",
    )


def is_untouched(landing: Landing) -> bool:
    """Whether a landing that was killed has left nothing in the files of its checkout."""
    place = _tree_of(landing.place, landing.repository) if landing.place else None
    if place is None:
        return True
    return checkout_update.is_untouched(
        CheckoutUpdate(
            place, landing.repository, landing.old, landing.new, keeps_index=landing.is_patch
        )
    )
