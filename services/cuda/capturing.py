"""The one lock that recording takes."""

import threading

CAPTURING = threading.Lock()
"""Held while a thread records a CUDA graph, of which torch can do one at a time in a process.

Whoever waits for a whole device, as `torch.cuda.synchronize` does, must hold it too: CUDA refuses that while any stream
of the device is recorded, by whatever thread, and spoils the recording. Waiting for a stream or an event is free.
"""
