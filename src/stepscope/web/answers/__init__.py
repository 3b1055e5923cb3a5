"""One answer to scripts of the pages in each file."""
