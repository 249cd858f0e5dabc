"""The processes that hold a capsule's view, start its runs, own their output and leave nothing.

Law of the package: standard library only, one thread, crash-only. It also does without `typing`
and `dataclasses` at run time (hence `TYPE_CHECKING = False`, which type checkers know): every
active capsule would pay for them in memory.
"""
