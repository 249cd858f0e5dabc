"""Egress of capsules: proxy, transparent proxy, DNS, limits and the log of connections."""
