"""One page in each file."""
