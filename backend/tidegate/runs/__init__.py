"""Runs that are shown: where they are, what they were at any instant, and how one is played or imported."""
