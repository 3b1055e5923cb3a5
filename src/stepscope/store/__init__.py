"""A trace on disk: written once, aside and renamed, then only read."""
