"""What runs beside the observed thing: the kernel collector, the engine plugin, and the launchers of agents."""

__version__ = "0.1.0"
