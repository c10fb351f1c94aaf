"""How policies fare: robots, and the rollout that turns policies into evaluations."""
