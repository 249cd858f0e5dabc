"""How processes are started inside a capsule: its view, its limits and its walls."""
