"""Removes the queries to a terminal from output that is shown again.

The terminal of an owner who attaches later would answer them, and its answers would be typed into a
program that no longer waits for them.
"""

from __future__ import annotations

import re

_QUERIES = re.compile(
    rb"\x05"  # ENQ
    rb"|\x1bZ"  # DECID
    rb"|\x1b\[(?:"
    rb"[>=]?[0-9;]{0,32}c"  # DA1, DA2, DA3
    rb"|\??[0-9;]{0,32}n"  # DSR: status, cursor position, colour scheme
    rb"|\??[0-9;]{0,32}\$p"  # DECRQM
    rb"|>[0-9]{0,8}q"  # XTVERSION
    rb"|\?u"  # the flags of the kitty keyboard protocol
    rb"|\?[0-9;]{0,32}[mS]"  # XTQMODKEYS, XTSMGRAPHICS
    rb"|[01]?x"  # DECREQTPARM
    rb"|(?:1[1345689]|2[01])(?:;[0-9]{1,8})?t"  # the size, place and title of the window
    rb"|[0-9;]{0,32}(?:\$[uw]|\*y)"  # DECRQTSR, DECRQPSR, DECRQCRA
    rb"|&u|\"v|#[|R]"  # DECRQUPSS, DECRQDE, XTREPORTSGR, XTREPORTCOLORS
    rb")"
    # Colours, the clipboard, and what else has `?` for a value.
    rb"|\x1b\](?:4|5|1[0-9]|21|22|50|52|60|61|99|702)"
    rb"(?:;[^\x07\x1b]{0,256}?)?[;=]\?[^\x07\x1b]{0,256}(?:\x07|\x1b\\)"
    rb"|\x1b\]1337;(?:ReportCellSize|ReportVariable=[^\x07\x1b]{0,256}|Capabilities)(?:\x07|\x1b\\)"
    rb"|\x1bP[0-9;]{0,32}[+$]q[^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # XTGETTCAP, DECRQSS
    rb"|\x1b_G(?:[^\x07\x1b;]{0,256},)?a=q[^\x07\x1b]{0,4096}\x1b\\"  # kitty graphics
)


def strip_queries(output: bytes) -> bytes:
    """The output without them; everything else stays as it is."""
    return _QUERIES.sub(b"", output)
