"""Secrets: where values are read from, and the vault that keeps them encrypted."""
