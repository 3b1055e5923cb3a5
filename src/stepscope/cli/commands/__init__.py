"""One verb per file: the function named like its file, whose signature is its options."""
