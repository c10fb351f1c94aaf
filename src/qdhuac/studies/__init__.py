"""Studies: many runs that answer one question, their statistics and their figures."""
