"""Agents: started for a task, observed by facts, sent the next message."""
