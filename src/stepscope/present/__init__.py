"""Turns tables, reports, comparisons and checks into text; pure functions that never see a store."""
