"""The formats of a comparison, one file each: pure functions from it to text."""
