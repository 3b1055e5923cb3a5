"""The same work for many ranks: on the processors of this machine, or over Ray."""
