"""Touches the machine: one module per danger. All other packages use these modules."""
