"""The walls of a capsule, attacked from inside.

Attempts are data: one module per wall lists them, `inside.py` is the program that makes them,
`canaries.py` lays out what they reach for, and `attack.py` puts it all together.
"""
