"""Touches the machine: one door per danger. Everything above asks these modules."""
