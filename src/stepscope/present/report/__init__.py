"""The formats of a report, one file each: pure functions from a report to text."""
