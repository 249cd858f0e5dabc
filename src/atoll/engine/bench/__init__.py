"""`atoll bench`: the figures of this machine, measured against what others would need for the same.

Nothing here is a figure from somewhere else: each ratio is made of two times of one run, on one
filesystem, and everything that is created for it is removed with it.
"""
