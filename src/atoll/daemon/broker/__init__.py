"""The credential broker: puts real values into requests of a capsule, towards their own hosts."""
