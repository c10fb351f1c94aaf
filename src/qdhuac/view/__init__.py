"""Looking at what a run has found."""
