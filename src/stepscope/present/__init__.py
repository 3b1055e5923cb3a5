"""Turns tables and reports into text; pure functions that never see a store."""
