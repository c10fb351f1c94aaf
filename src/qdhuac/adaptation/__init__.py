"""What to do when the robot is no longer the one that was trained on."""
