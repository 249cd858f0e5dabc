"""Event streams of agents, one module per family of programs.

They are hostile: every reader here returns something for every line, never raises, and shortens
each text. What the events say is shown to people and never decides anything by itself.
"""
