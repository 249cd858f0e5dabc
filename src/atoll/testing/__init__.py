"""Shipped test tools: fakes, conformance suites, fault injection."""
