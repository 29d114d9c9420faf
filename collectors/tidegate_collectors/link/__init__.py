"""The line between a collector and the backend: newline-delimited JSON over a unix socket, both directions.

Records go up, acknowledgements and policies come down. Every record is kept until the backend has committed it.
"""

from tidegate_collectors.link.client import Backoff, LinkClient, LinkStats
from tidegate_collectors.link.messages import PROTOCOL, Down, Hello, LinkError, Refuse, Up, Welcome, new_src
from tidegate_collectors.link.peer import Peer, allowed_client_uids, allowed_server_uids, peer_of, service_user
from tidegate_collectors.link.queue import Stamper, Unacked
from tidegate_collectors.link.server_socket import listen_unix, make_runtime_dir

__all__ = [
    "PROTOCOL",
    "Backoff",
    "Down",
    "Hello",
    "LinkClient",
    "LinkError",
    "LinkStats",
    "Peer",
    "Refuse",
    "Stamper",
    "Unacked",
    "Up",
    "Welcome",
    "allowed_client_uids",
    "allowed_server_uids",
    "listen_unix",
    "make_runtime_dir",
    "new_src",
    "peer_of",
    "service_user",
]
