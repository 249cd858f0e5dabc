"""Browsers: how each is found, started and asked; one file per family."""
