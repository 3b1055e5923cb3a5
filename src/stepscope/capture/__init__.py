"""What runs inside of the user's program: it records, measures, and changes nothing."""
