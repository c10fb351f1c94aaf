"""What a run is worth."""
