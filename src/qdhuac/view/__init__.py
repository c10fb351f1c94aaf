"""Videos of individuals, and the explorer in the browser."""
