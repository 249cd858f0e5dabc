"""Agents: started for a task, observed by facts, told the next message."""
