"""Policies for use outside of qdhuac."""
