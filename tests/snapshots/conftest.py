"""Stored output: compares text with a file, after one filter has taken out what differs by machine.

`UPDATE_SNAPSHOTS=1 pytest tests/snapshots` writes the files anew; read the difference before it is
committed.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

STORED = Path(__file__).parent / "stored"
FACE = {"COLUMNS": "100", "NO_COLOR": "1"}

# In order: what comes first is taken out first.
FILTERS: tuple[tuple[str, str], ...] = (
    (r'("(?:time|at|since|\w+_at)": )\d+(?:\.\d+)?', r"\1[TIME]"),
    (r'("(?:cpu_s|age_s|took_s)": )[\d.e-]+', r"\1[SECONDS]"),
    (r'("(?:max_rss_bytes|rss_bytes)": )\d+', r"\1[BYTES]"),
    (r'("(?:base_)?disk_bytes": )\d+', r"\1[BYTES]"),
    (r"(?m)^(disk +)[\d.]+[BKMG]\b", r"\1[SIZE]"),
    (r'("(?:pid|ppid)": )\d+', r"\1[PID]"),
    (r"\b\d{8}T\d{6}-\d+\b", "[STAMP]"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b", "[MOMENT]"),
    (r"\b[0-9a-f]{64}\b", "[DIGEST]"),
    (r"\b[0-9a-f]{40}\b", "[HASH]"),
    (r"(?<=/projects/repo-)[0-9a-f]{8}\b", "[ID]"),
    (r"(?<=@)[0-9a-f]{7}\b", "[HASH]"),
    (r"\b[0-9a-f]{10}\b", "[HASH]"),
    (r"\b2\d{4}\b", "[PORT]"),
    (r"\bin \d+\.\d\d s\b", "in [SECONDS] s"),
    (r"\b\d+\.\d s\b", "[SECONDS]"),
    (r"(?<=/checks/repo-)[0-9a-f]{8}/\d{14}-[0-9a-f]{8}\b", "[ID]"),
    (
        r"(?m)^(\S+ +(?:worktree|clone|sandbox) +.* {2})[\d.]+[BKMG]? +\d+[smhd]$",
        r"\1[SIZE]  [AGE]",
    ),
    (r"(?m)^(\S+ +(?:env|file|command|vault) .*? {2})\d+[smhd]( {2,})", r"\1[AGE]\2"),
    (r"(?m)^(\S+ +script +.*? {2})\d+[smhd]( {2,})", r"\1[AGE]\2"),
    # A column is as wide as what stood in it, so widths differ by machine too.
    (r"(?m)(?<=[A-Z]\]) {2,}(?=\S)", "  "),
    (r"(?m) {2,}(?=(?:STORED|COMMIT|PORTS|DISK|AGE)\b)", "  "),
)


def without_phases(text: str) -> str:
    """Narration without the phase of what took longer than a second: a busy machine prints it."""
    return re.sub(r"(?m)^(?:\S+: [a-z -]+|copying .*) …\n", "", text)


def filtered(text: str, places: dict[str, Path]) -> str:
    """`text` as it is on every machine; `places` are paths by the word that stands for them."""
    # The longest first: one place may lie in another.
    for word, path in sorted(places.items(), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(path), f"[{word}]")
    for pattern, replacement in FILTERS:
        text = re.sub(pattern, replacement, text)
    return text


def compare(path: Path, text: str) -> None:
    """Fails unless `text` is what is stored at `path`; with UPDATE_SNAPSHOTS=1 stores it."""
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    stored = path.read_text(encoding="utf-8") if path.is_file() else ""
    if stored != text:
        lines = difflib.unified_diff(
            stored.splitlines(keepends=True), text.splitlines(keepends=True), "stored", "now"
        )
        pytest.fail(
            f"`{path.name}` is not what is stored; UPDATE_SNAPSHOTS=1 takes it over\n"
            + "".join(lines),
            pytrace=False,
        )


@pytest.fixture
def helper() -> SimpleNamespace:
    """The functions above, for the tests of the tests."""
    return SimpleNamespace(filtered=filtered, compare=compare, without_phases=without_phases)


@pytest.fixture
def stored_names() -> set[str]:
    return {path.stem for path in STORED.glob("*.txt")}


@pytest.fixture
def tell(
    atoll: Callable[..., object], atoll_home: Path, tmp_path: Path
) -> Callable[..., list[str]]:
    """`tell("ls", cwd=repo)`: runs the program and adds what it said to a transcript."""
    lines: list[str] = []

    def run(
        *args: str, cwd: Path | None = None, env: dict[str, str] | None = None, shown: bool = True
    ) -> list[str]:
        done = atoll(*args, cwd=cwd or tmp_path, check=False, env={**FACE, **(env or {})})
        if shown:
            lines.append(f"$ atoll {shlex.join(args)}\n")
            lines.extend(
                f"--- {name}\n{text}" + ("" if text.endswith("\n") else "\n")
                for name, text in (
                    ("answer", done.stdout),  # type: ignore[attr-defined]
                    ("narration", without_phases(done.stderr)),  # type: ignore[attr-defined]
                )
                if text
            )
            lines.append(f"--- exit {done.returncode}\n\n")  # type: ignore[attr-defined]
        return lines

    return run


@pytest.fixture
def check(
    tell: Callable[..., list[str]], atoll_home: Path, tmp_path: Path
) -> Callable[[str, list[str]], None]:
    """`check("ls", transcript)`: compares a transcript with the stored one of that name."""

    def compare_transcript(name: str, lines: list[str]) -> None:
        places = {"HOME": atoll_home, "REPO": tmp_path / "repo", "TMP": tmp_path}
        places["PYTHON"] = Path(sys.executable)
        compare(STORED / f"{name}.txt", filtered("".join(lines), places))

    return compare_transcript
