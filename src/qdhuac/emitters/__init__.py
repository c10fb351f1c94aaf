"""Who is tried."""
