"""`git mv` of a directory where the kernel refuses to rename one that lies in a lower layer.

Most programs copy when they are told so; git does not. A script that comes first in the path
gives such a directory a copy of its own before git moves it; everything else it hands on.
"""

from __future__ import annotations

from pathlib import Path

from atoll.host import files

_SCRIPT = r"""#!/bin/sh
# Atoll: makes `git mv DIRECTORY` work in this capsule. See `atoll show`.
here=$(dirname -- "$0")
PATH=$(printf %s ":$PATH:" | sed "s|:$here:|:|g; s|^:||; s|:\$||")
export PATH
own_copy() {
    # A copy in the upper layer can be renamed; the copy keeps modes and times.
    [ -d "$1" ] && [ ! -L "$1" ] || return 0
    aside=$(mktemp -d "$(dirname -- "$1")/.atoll-mv.XXXXXX") || return 0
    if cp -a -- "$1" "$aside/copy" && rm -rf -- "$1"; then
        mv -- "$aside/copy" "$1"
    fi
    rm -rf -- "$aside"
}
at=. verb=
for word in "$@"; do
    case $verb,$word in
        ,-C) verb=at; continue ;;
        at,*) at=$at/$word; case $word in /*) at=$word ;; esac; verb=; continue ;;
        ,-c | ,--git-dir | ,--work-tree | ,--namespace | ,--exec-path) verb=skip; continue ;;
        skip,*) verb=; continue ;;
        ,-*) continue ;;
        ,mv) verb=mv; break ;;
        *) verb=other; break ;;
    esac
done
if [ "$verb" = mv ]; then
    seen= last= dry=
    for word in "$@"; do
        case $word in -n | --dry-run) dry=yes ;; esac
    done
    for word in "$@"; do
        if [ -z "$seen" ]; then
            [ "$word" = mv ] && seen=yes
            continue
        fi
        case $word in -*) continue ;; esac
        if [ -n "$last" ] && [ -z "$dry" ]; then (cd -- "$at" && own_copy "${last%/}"); fi
        last=$word
    done
fi
exec git "$@"
"""


def install(directory: Path) -> None:
    """Writes the script; fine when it is there."""
    path = directory / "git"
    if path.exists() and path.read_text() == _SCRIPT:
        return
    files.make_private_directory(directory)
    files.write_atomic(path, _SCRIPT.encode(), mode=0o755)
