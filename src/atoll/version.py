"""The one place that names the version; the build reads it from here."""

__version__ = "0.1.0"

DAEMON_REVISION = 5
"""Increase this whenever the messages between commands, the daemon and holders, or the schema of
the store, change: commands then replace a daemon of an earlier revision.
"""
