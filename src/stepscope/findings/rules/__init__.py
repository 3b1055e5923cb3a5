"""One advice each: a function from finished tables to what costs time, why, and what to change."""
