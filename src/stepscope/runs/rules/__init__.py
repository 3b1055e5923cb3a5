"""Advice about a run of many ranks, one rule each, over the tables of `runs/analyses`."""
