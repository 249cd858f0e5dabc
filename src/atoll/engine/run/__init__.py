"""Runs: process trees that are started in a capsule, followed, frozen and stopped."""
