"""Runners: what decodes requests with a draft, times it and counts it, behind one interface.

* `runner`: the interface, and the values that pass through it: requests, runs, and runs that a work file keeps.
* `loop_runner`: treeopt's own loop.
* `engine_runner`: an inference engine, through its driver.
"""
