"""The command line: one verb per file in `commands`."""
