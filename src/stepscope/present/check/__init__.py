"""The formats of a check, one file each: pure functions from it to text."""
