"""Takes an agent's work out of a capsule as data: files, refs, index and objects.

The agent's git is never asked and its repository is never given to a git of the host. A TreeReader
reads files; Python parses refs and the index; objects are verified and pass a quarantine.
"""
