"""Emitters propose genotypes."""
