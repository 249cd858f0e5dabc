"""Frozen layers of a project: how they are made, found, checked and collected."""
