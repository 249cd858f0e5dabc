"""`git mv` of a directory where the kernel refuses to rename one that lies in a lower layer.

Most programs copy when they are told so; git does not. A script that comes first in the path
gives such a directory a copy of its own before git moves it; everything else it hands on.
"""

from __future__ import annotations

from pathlib import Path

from atoll.host import files

_SCRIPT = r"""#!/bin/sh
# Atoll: makes `git mv DIRECTORY` work in this capsule. See `atoll show`.
real=
rest=$PATH:
while [ -n "$rest" ] && [ -z "$real" ]; do
    place=${rest%%:*}
    rest=${rest#*:}
    # Whatever way the path names this very script, it is never what comes next.
    [ -x "$place/git" ] && [ ! "$place/git" -ef "$0" ] && real=$place/git
done
[ -n "$real" ] || { echo "git: not found" >&2; exit 127; }
own_copy() {
    # A copy in the upper layer can be renamed. It lies beside the original, so that it need not
    # be writable itself; until it has taken the other's place, one of the two is always whole.
    [ -d "$1" ] && [ ! -L "$1" ] || return 0
    case $1 in . | .. | */. | */..) return 0 ;; esac
    aside=$(mktemp -d "$(dirname -- "$1")/.atoll-mv.XXXXXX") || return 0
    trap '' HUP INT TERM
    if cp -a -- "$1/." "$aside"; then
        chmod -R u+rwX -- "$1"
        if rm -rf -- "$1" && mv -- "$aside" "$1"; then return 0; fi
        mkdir -p -- "$1"
        cp -a -- "$aside/." "$1" || return 0
    fi
    chmod -R u+rwX -- "$aside"
    rm -rf -- "$aside"
}
at=. verb=
for word in "$@"; do
    case $verb,$word in
        ,-C) verb=at; continue ;;
        at,/*) at=$word verb=; continue ;;
        at,*) at=$at/$word verb=; continue ;;
        ,-c | ,--git-dir | ,--work-tree | ,--namespace | ,--config-env) verb=skip; continue ;;
        skip,*) verb=; continue ;;
        ,-*) continue ;;
        ,mv) verb=mv; break ;;
        *) verb=other; break ;;
    esac
done
if [ "$verb" = mv ]; then
    # Twice: first to hear whether it is only to be said what would be done.
    for round in listen act; do
        seen= plain= last=
        [ $round = listen ] && dry=
        for word in "$@"; do
            case $seen,$plain,$word in
                ,*,mv) seen=yes; continue ;;
                ,*) continue ;;
                yes,,--) plain=yes; continue ;;
                yes,,--d* | yes,,-[!-]*n* | yes,,-n*) dry=yes; continue ;;
                yes,,-*) continue ;;
            esac
            while [ "$word" != "${word%/}" ]; do word=${word%/}; done
            if [ $round = act ] && [ -n "$last" ] && [ -z "$dry" ]; then
                case $last in -*) last=./$last ;; esac
                (cd -- "$at" && own_copy "$last")
            fi
            last=$word
        done
    done
fi
exec "$real" "$@"
"""


def install(directory: Path) -> None:
    """Writes the script; fine when it is there."""
    path = directory / "git"
    if path.exists() and path.read_text() == _SCRIPT:
        return
    files.make_private_directory(directory)
    files.write_atomic(path, _SCRIPT.encode(), mode=0o755)
