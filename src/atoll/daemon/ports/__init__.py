"""A capsule's ports on the host: leased ones, names, and its own numbers."""
