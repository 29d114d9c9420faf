"""Tidegate's unprivileged half: ingest, store, fold, pages and API."""

from tidegate._version import __version__

__all__ = ["__version__"]
