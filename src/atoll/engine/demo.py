"""The sample project that ships with the package, and three attempts at its task."""

from __future__ import annotations

from pathlib import Path

from atoll.host import files, git

_SAMPLES = Path(__file__).parents[1] / "samples"


def make_sample(place: Path) -> Path:
    """Lays the sample out below `place` as a git repository with one commit."""
    root = place / "shop"
    for source in sorted((_SAMPLES / "shop").rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            target = root / source.relative_to(_SAMPLES / "shop")
            files.make_private_directory(target.parent)
            files.write_new(target, source.read_bytes())
    git.git("init", "--quiet", "--initial-branch=main", ".", cwd=str(root))
    # Whoever tries the demo may not have told git a name yet.
    git.git("config", "user.name", "Atoll demo", cwd=str(root))
    git.git("config", "user.email", "demo@localhost", cwd=str(root))
    git.git("add", "--all", cwd=str(root))
    git.git("commit", "--quiet", "-m", "shop: the sample project", cwd=str(root))
    return root


def attempts() -> dict[str, Path]:
    """Three programs that stand in for agents, by name."""
    return {path.stem: path for path in sorted((_SAMPLES / "attempts").glob("*.py"))}


def owner_state(root: Path) -> str:
    """What the owner's checkout looks like: it must not change."""
    head = git.find_commit("HEAD", cwd=str(root))
    return f"{head} {git.git('status', '--porcelain', '--ignored', cwd=str(root)).text}"


def branch_log(root: Path, branch: str) -> str:
    return git.git("log", "--oneline", f"main..{branch}", "--", cwd=str(root)).text.strip()
