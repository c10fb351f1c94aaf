"""Adaptation of an archive to a damaged robot."""
