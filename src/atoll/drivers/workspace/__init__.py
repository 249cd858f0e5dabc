"""Ways to give a capsule its files."""
