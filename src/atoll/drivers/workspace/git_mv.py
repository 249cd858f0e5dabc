"""Makes `git mv` work on directories of a lower layer where the kernel refuses to rename them.

Most programs fall back to copying on EXDEV; git does not. A wrapper script that comes first in PATH
copies such a directory to the upper layer before git moves it, and passes everything else on.
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
    # Never this script itself, whatever path leads to it.
    [ -x "$place/git" ] && [ ! "$place/git" -ef "$0" ] && real=$place/git
done
[ -n "$real" ] || { echo "git: not found" >&2; exit 127; }
own_copy() {
    # A copy in the upper layer can be renamed. It is created beside the original, which need not
    # be writable; until it has replaced the original, one of the two is always complete.
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
    # Two rounds: the first finds out whether this is a dry run.
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
    """Writes the script if it is missing."""
    path = directory / "git"
    if path.exists() and path.read_text() == _SCRIPT:
        return
    files.make_private_directory(directory)
    files.write_atomic(path, _SCRIPT.encode(), mode=0o755)
