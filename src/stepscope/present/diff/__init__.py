"""The faces of a comparison: pure functions from it to text."""
