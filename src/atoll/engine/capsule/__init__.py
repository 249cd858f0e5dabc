"""A capsule from plan to removal: creation, work, exports, recovery after a crash."""
