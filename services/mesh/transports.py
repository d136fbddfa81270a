"""The transports that this process offers to its peers."""

from .process_memory import ProcessMemoryTransport
from .region_transport import RegionTransport
from .shared_memory import SharedMemoryTransport

TRANSPORTS: tuple[RegionTransport, ...] = (ProcessMemoryTransport(), SharedMemoryTransport())
"""Best first. Where a peer can use none of them, tensors go inline."""
