"""Secrets: granted to capsules, delivered in one of three forms, and never shown."""
