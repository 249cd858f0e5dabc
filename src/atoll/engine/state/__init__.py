"""Durable state of one Atoll home: store, schema, backups, leases, session."""
