"""A capsule's browsers: one inside for its agents, one on the host with a profile of its own."""
