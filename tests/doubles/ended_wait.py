"""Ends a wait of a GPU while another thread does something for which the driver may wait for the whole device.

Argument: what that is. In a process of its own, which a test can kill where it hangs.
"""

import mmap
import sys
import threading

import torch
from allroads.cuda.ipc import CudaIpcDevice, find_ipc_device

_HEAD_START_S = 1.0


def main() -> None:
    device = find_ipc_device(0)
    other = device.allocate(1 << 20)
    words = device.register(mmap.mmap(-1, mmap.PAGESIZE))
    values = torch.zeros(4, device=device.torch_device)
    lane = device.new_lane()
    lane.wait_word(words, 0, 1)
    mark = lane.mark()
    assert not mark.is_reached()
    work = {"free": other.close, "load": lambda: _load(device, values)}[sys.argv[1]]
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_HEAD_START_S)
    # Nothing is asked of CUDA before the wait is ended: it may be held up until then.
    words.store(0, 1)
    thread.join()
    mark.join([])
    torch.cuda.current_stream(device.torch_device).synchronize()
    assert mark.is_reached()
    words.close()


def _load(device: CudaIpcDevice, values: torch.Tensor) -> None:
    """A kernel that nothing has launched before: CUDA loads it now."""
    with torch.cuda.stream(torch.cuda.Stream(device.torch_device)):
        torch.special.bessel_j0(values)


if __name__ == "__main__":
    main()
