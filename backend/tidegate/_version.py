"""The version, where the build, the command and the link can read it without importing anything else."""

__version__ = "0.1.0"
