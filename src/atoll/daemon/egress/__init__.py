"""A capsule's way out: who asks for what, by which name, and what comes of it."""
