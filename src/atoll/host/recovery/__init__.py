"""Recovery points: saved work of removed capsules, and how it is restored."""
