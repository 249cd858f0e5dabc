"""Agents: adapter files, the owner's logins, and the event streams of their programs."""
