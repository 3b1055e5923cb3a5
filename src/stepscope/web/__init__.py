"""The window: pages about traces and runs in the browser, from a server on this machine."""
