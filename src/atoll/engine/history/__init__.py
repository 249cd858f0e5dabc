"""Layers and snapshots: what a capsule starts from, and the points to which it can return."""
