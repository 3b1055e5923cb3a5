"""Simulation: recorded steps played again under changes, and the graph of waits that it runs on.

Three things are built on it: what a step takes without the profiler, what a change would gain (`changes`
lists those that have a name), and the critical path.
"""
