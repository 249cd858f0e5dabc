"""The one place that names the version; the build reads it from here."""

__version__ = "0.1.0"

DAEMON_REVISION = 3
"""Increased whenever what commands, the daemon and holders say to each other changes, so that a
daemon of an earlier state of the same version is replaced.
"""
