"""Cost models: what work computes and moves, at which precision, and how near that comes to the peak."""
