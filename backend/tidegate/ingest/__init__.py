"""How records come in: from the link, or from a recording."""

from tidegate.ingest.account import LineError
from tidegate.ingest.pipeline import Ingest
from tidegate.ingest.server import LinkServer, bind_link

__all__ = ["Ingest", "LineError", "LinkServer", "bind_link"]
