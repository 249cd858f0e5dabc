"""Decides: order, state, recovery. Knows the drivers' contracts, never a driver."""
