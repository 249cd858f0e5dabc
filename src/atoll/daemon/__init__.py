"""The one background process per user: egress proxy, DNS and published ports.

Crash-only: all its state is in the store and in the kernel, and is read again at its start. Async
code is used only here.
"""
