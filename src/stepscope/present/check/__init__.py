"""The faces of a check: pure functions from it to text."""
