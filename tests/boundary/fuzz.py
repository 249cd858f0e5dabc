"""A fuzzer for the boundary: builds hostile capsules and watches the host side look at them.

    python tests/boundary/fuzz.py [--seconds 600] [--seed N] [CASE…]

CASE is a seed or a known finding (E1 … F6); without one, cases are made from `--seed` on until the
time is over. Each finding comes with the command that repeats it. ATOLL_UNDER_TEST names another
installation's `atoll`. Exits 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from boundary import ingredients
from boundary.cases import KNOWN, Case, find_case
from boundary.owner import PROBE, Owner
from boundary.rules import Problem, check, shorten
from boundary.watch import Watched

_SETTLE_S = 6.0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Trial:
    """One case, from nothing to nothing."""

    def __init__(self, case: Case, *, verbose: bool = False, keep: bool = False) -> None:
        self.case, self.verbose, self.keep = case, verbose, keep
        self.owner = Owner(case)
        self.problems: list[Problem] = []
        self.forks: list[str] = []
        self.lives = bool(case.background)

    def run(self) -> list[Problem]:
        try:
            self._prepare()
            before = self.owner.portrait()
            if self.case.venv:
                self.owner.activate()
            for act in self.case.acts:
                self._act(act)
            self.owner.deactivate()
            self._compare(before)
            self._check_others()
        finally:
            if not self.keep:
                self.owner.remove()
        return shorten(self.problems)

    def _add(self, kind: str, verb: str, detail: str) -> None:
        self.problems.append(Problem(kind, verb, detail))

    def _atoll(self, verb: str, *words: str) -> Watched:
        done = self.owner.atoll(*words)
        found = check(self.owner, verb, done)
        if self.verbose:
            said = done.output[-200:].decode(errors="replace") if done.code else ""
            line = " ".join(words)[:60].replace("\n", " ")
            say(f"  {done.took_s:5.1f}s {done.code} {line}: {len(found)} {said!a}")
        self.problems += found
        if verb in ("fork", "snapshot", "rollback", "rm-force", "bystander"):
            self.problems += [Problem("canary", verb, leak) for leak in self.owner.leaks()]
        if not self.lives:
            self._check_processes(verb)
        return done

    def _prepare(self) -> None:
        owner = self.owner
        code: int | None
        # Unwatched: the first command of a home also tries what this machine can do.
        owner.unwatched("new", "bystander")
        if self.case.background:
            # What `new` leaves starts all runs, and those that go on must not have a tracer.
            made = owner.unwatched("new", "x")
            code, said = made.returncode, made.stderr
        else:
            done = self._atoll("new", "new", "x")
            code, said = done.code, done.output
        if code != 0:
            self._add("unusable", "new", said[-500:].decode(errors="replace"))
        owner.unwatched("run", "bystander", "--", "sh", "-c", "echo work >private.txt")
        if self.case.inside:
            self._atoll("inside", "run", "x", "--", "bash", "-c", owner.script())
        for name in self.case.background:
            program = ingredients.RACER if name == "racer" else ingredients.DAEMON
            owner.unwatched(
                "run", "-d", "x", "--", "/usr/bin/python3", "-c", program, str(owner.home),
                str(self.case.racer_bytes),
            )  # fmt: skip

    def _act(self, act: str) -> None:
        special = {
            "lose-store": self._lose_store, "fork": self._fork, "probe": self._probe,
            "restore": self._restore, "stop": self._stop, "pause": self._pause,
            "rm-force": self._remove,
        }  # fmt: skip
        if act in special:
            special[act]()
        else:
            self._atoll(act, *WORDS[act])

    def _lose_store(self) -> None:
        for path in self.owner.atoll_home.glob("state.db*"):
            path.unlink()

    def _fork(self) -> None:
        self.forks.append(f"f{len(self.forks) + 1}")
        self._atoll("fork", "fork", "x", self.forks[-1])

    def _restore(self) -> None:
        for number, point in enumerate(self.owner.points()[:3]):
            self._atoll("restore", "recover", point, "--as", f"back{number}")

    def _stop(self) -> None:
        self._atoll("stop", "stop", "x")
        self.lives = False
        self._check_processes("stop")

    def _remove(self) -> None:
        self.lives = False
        for name in ("x", *self.forks):
            self._atoll("rm-force", "rm", "--force", name)

    def _probe(self) -> None:
        """Looks for canaries inside of the capsule and its forks."""
        paths = [str(path) for path in self.owner.canaries.values()]
        for name in ("x", *self.forks):
            self._atoll("probe", "run", name, "--", "/usr/bin/python3", "-c", PROBE, *paths)

    def _pause(self) -> None:
        """A paused capsule's processes write nothing.

        Processor time would not tell: a signal that reaches a frozen process costs some, although
        it leaves the kernel only when it is thawed.
        """
        done = self._atoll("pause", "pause", "x")
        if done.code == 0:
            before = self._writes()
            time.sleep(0.5)
            moved = [pid for pid, count in self._writes().items() if count > before.get(pid, count)]
            if moved:
                commands = [self.owner.processes().get(pid, "gone")[:200] for pid in moved]
                self._add("not paused", "pause", f"{len(moved)} processes went on: {commands}")
        self._atoll("resume", "resume", "x")

    def _writes(self) -> dict[int, int]:
        """How often each program inside has called `write` or a sibling of it."""
        found = {}
        for pid, command in self.owner.processes().items():
            if "python3 -c" in command and "atoll.keeper" not in command and "bwrap" not in command:
                try:
                    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                found[pid] = int(next(line for line in lines if "syscw" in line).split()[1])
        return found

    def _check_processes(self, verb: str) -> None:
        """Nothing but Atoll's own keepers lives when no run does."""
        deadline = time.monotonic() + _SETTLE_S
        while left := self._strangers():
            if time.monotonic() > deadline:
                self._add("process left", verb, "; ".join(sorted(left.values()))[:300])
                return
            time.sleep(0.05)

    def _strangers(self) -> dict[int, str]:
        found = self.owner.processes()
        return {
            pid: c for pid, c in found.items() if "atoll.keeper" not in c and "-m atoll" not in c
        }

    def _compare(self, before: dict[str, str]) -> None:
        after = self.owner.portrait()
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                self._add(
                    "changed outside", "all", f"{path}: {before.get(path)} -> {after.get(path)}"
                )

    def _check_others(self) -> None:
        """The bystander works as before."""
        for verb, *words in (
            ("bystander", "run", "bystander", "--", "cat", "private.txt"),
            ("bystander", "show", "bystander"),
            ("bystander", "ls"),
            ("bystander", "recover"),
        ):
            done = self._atoll(verb, *words)
            if done.code and "lose-store" not in self.case.acts:
                self._add(
                    "bystander", " ".join(words[:1]), done.output[-300:].decode(errors="replace")
                )


WORDS = {
    "show": ("show", "x"),
    "show-json": ("show", "x", "--json"),
    "ls": ("ls",),
    "diff": ("diff", "x"),
    "stat": ("diff", "x", "--stat"),
    "snapshot": ("snapshot", "x"),
    "snapshots": ("snapshots", "x"),
    "rollback": ("rollback", "x", "--stop"),
    "commit": ("commit", "x", "-m", "all"),
    "export": ("export", "x"),
    "export-all": ("export", "x", "--all"),
    "path": ("path", "x"),
    "ps": ("ps", "x"),
    "logs": ("logs", "x"),
    "recover": ("recover",),
    "warm": ("warm",),
    "gc": ("gc",),
    "rm": ("rm", "x"),
    "run": ("run", "x", "--", "true"),
}


def repro(case: Case) -> str:
    target = os.environ.get("ATOLL_UNDER_TEST")
    prefix = f"ATOLL_UNDER_TEST={target} " if target else ""
    return f"{prefix}.venv/bin/python tests/boundary/fuzz.py {case.name}"


def attempt(case: Case, given: argparse.Namespace) -> int:
    started = time.monotonic()
    found = Trial(case, verbose=given.verbose, keep=given.keep).run()
    took_s = time.monotonic() - started
    state = f"{len(found)} findings" if found else "nothing"
    say(f"{case.name}: {state} in {took_s:.0f} s ({', '.join(case.inside + case.checkout)})")
    for problem in found:
        say(f"  {problem.kind} [{problem.verb}] {problem.detail[:400]!a}")
    if found:
        say(f"  repeat: {repro(case)}")
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--known", action="store_true", help="the known findings first")
    parser.add_argument("--keep", action="store_true", help="leave the place as it is")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    names = given.cases or ([case.name for case in KNOWN] if given.known else [])
    # So that an end from outside also ends what the case has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    findings = sum(attempt(find_case(name), given) for name in names)
    count, seed = len(names), given.seed
    deadline = time.monotonic() + given.seconds
    while not given.cases and time.monotonic() < deadline:
        findings += attempt(find_case(str(seed)), given)
        count, seed = count + 1, seed + 1
    say(f"{count} cases, {findings} findings, first seed {given.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
