"""Runs of the store, written in formats of ours and of others."""
