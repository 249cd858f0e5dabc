"""The one background process per user: egress proxy, ports out, names.

Crash-only: all that it knows is in the store and in the kernel, and is found again at its start.
Async lives here and nowhere else.
"""
