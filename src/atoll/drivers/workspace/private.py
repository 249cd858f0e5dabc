"""A capsule's private repository, asked inside the capsule; its commits leave as a pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.workspace import recovery
from atoll.host import files, git
from atoll.model.errors import StateError
from atoll.model.plan import Enclosure, WorkspacePlan

_REFS_LIMIT = 1_000
_GITLINK = "160000"
_TEXT = "atoll: what was not committed"


class PrivateSite:
    def __init__(
        self, plan: WorkspacePlan, inside: Enclosure, set_aside: Callable[[Path], None]
    ) -> None:
        self.plan = plan
        self.inside = inside
        self.set_aside = set_aside

    def is_there(self) -> bool:
        return Pool(self.plan.pool).tree(self.plan.upper).is_dir()

    def belongs(self) -> bool:
        path = self.plan.path
        answer = git.git(
            "rev-parse", "--path-format=absolute", "--git-dir", "--show-toplevel",
            cwd=path, within=self.inside, allowed=(0, 128),
        )  # fmt: skip
        real = os.path.realpath(path)
        return answer.code == 0 and answer.text == f"{real}/.git\n{real}\n"

    def tips(self) -> list[str]:
        """Delivers them, too: only the owner's repository can tell whether they are held there."""
        if not self.is_there() or not self.belongs():
            return self._exported()
        head = git.find_commit("HEAD", cwd=self.plan.path, within=self.inside)
        tips = [] if head is None else [head]
        tips += self._own_tips()
        found = list(dict.fromkeys(tips))
        self.deliver(found)
        return list(dict.fromkeys([*found, *self._exported()]))

    def _own_tips(self) -> list[str]:
        """Where refs stand that are not as they were when the capsule was made."""
        answer = git.git(
            "for-each-ref", "--format=%(objectname) %(refname)",
            "refs/heads", "refs/stash", "refs/tags",
            cwd=self.plan.path, within=self.inside,
        )  # fmt: skip
        # The newest stash is a ref; those below it are only in its log.
        stashes = git.git(
            "log", "--walk-reflogs", "--format=%H", "refs/stash", "--",
            cwd=self.plan.path, within=self.inside, allowed=(0, 128),
        ).text.split()  # fmt: skip
        at_first = self._first_refs()
        lines = [line for line in answer.text.splitlines() if line not in at_first]
        names = dict.fromkeys([*(line.split(" ", 1)[0] for line in lines), *stashes])
        if len(names) > _REFS_LIMIT:
            raise StateError(f"the capsule has more than {_REFS_LIMIT} refs of its own")
        return self._commits(list(names))

    def _commits(self, names: list[str]) -> list[str]:
        """The commits that names stand for; a tag may stand for something else."""
        answer = git.git(
            "cat-file", "--batch-check=%(objectname) %(objecttype)",
            cwd=self.plan.path, within=self.inside,
            stdin="".join(f"{name}^{{}}\n" for name in names).encode(),
        )  # fmt: skip
        rows = [line.split(" ") for line in answer.text.splitlines()]
        return [row[0] for row in rows if row[1:] == ["commit"]]

    def is_sound(self) -> bool:
        answer = git.git(
            "rev-list", "--objects", "--all", "--quiet",
            cwd=self.plan.path, within=self.inside, allowed=range(256),
        )  # fmt: skip
        return answer.code == 0

    def lost_submodules(self) -> list[str]:
        """Submodules that the branch records at a commit which only the capsule has."""
        answer = git.git(
            "diff", "--raw", "-z", "--no-abbrev", "--no-renames", "--ignore-submodules=none",
            self.plan.base_commit, "HEAD", "--",
            cwd=self.plan.path, within=self.inside, allowed=(0, 128),
        )  # fmt: skip
        fields = answer.text.split("\0")
        changed = [
            (head.split(" "), path) for head, path in zip(fields[:-1:2], fields[1::2], strict=True)
        ]
        return [
            path
            for words, path in changed
            if words[1] == _GITLINK and not self._owner_has(path, words[3])
        ]

    def _owner_has(self, path: str, commit: str) -> bool:
        place = os.path.join(self.plan.checkout, path)
        is_there = os.path.lexists(os.path.join(place, ".git"))
        return is_there and git.find_commit(commit, cwd=place) is not None

    def _first_refs(self) -> set[str]:
        """From the frozen layer, which nobody writes."""
        for layer in self.plan.layers:
            if layer.startswith("g"):
                path = Pool(self.plan.pool).tree(layer) / WORKSPACE / ".git" / "packed-refs"
                content = files.read_regular(path, limit_bytes=1 << 28)
                return set(os.fsdecode(content or b"").splitlines())
        return set()

    def _exported(self) -> list[str]:
        """What was brought out before under the capsule's branch."""
        if self.plan.branch is None:
            return []
        tip = git.find_ref(f"refs/heads/{self.plan.branch}", cwd=self.plan.repository)
        return [] if tip is None else [tip]

    def deliver(self, commits: Sequence[str]) -> None:
        from atoll.host import quarantine  # noqa: PLC0415 - not for every run

        known = list(dict.fromkeys([self.plan.base_commit, *self._exported()]))
        quarantine.bring(
            self.plan.repository, commits, known=known, inside=self.inside, place=self.plan.path
        )

    def commit_rest(self, tip: str | None) -> str | None:
        """What is not committed as a commit on top of `tip`; `tip` when there is nothing."""
        trees = recovery.require_trees(self)
        parents = [tip] if tip is not None else []
        if tip is not None:
            held = git.git(
                "rev-parse", f"{tip}^{{tree}}", cwd=self.plan.path, within=self.inside
            ).text.strip()
            if held == trees.everything:
                return tip
        return recovery.commit_tree(self, trees.everything, parents, _TEXT)
