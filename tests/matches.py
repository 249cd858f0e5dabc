"""Paths that match a pattern while other processes create and remove directories."""

import glob
from pathlib import Path


def matching(place: Path, pattern: str) -> list[Path]:
    """`Path.glob` fails on a directory that is removed before it is listed; this leaves it out."""
    names = glob.glob(pattern, root_dir=place, recursive=True, include_hidden=True)
    return [place / name for name in names]
