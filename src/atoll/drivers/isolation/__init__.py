"""Ways to start a process inside a capsule."""
