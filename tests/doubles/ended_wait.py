"""Ends a wait of a GPU while another thread does something for which the driver may wait for the whole device.

Argument: what that is. In a process of its own, which a test can kill where it hangs.
"""

import sys
import threading

import torch
from allroads.cuda.ipc import CudaIpcDevice, find_ipc_device

_HEAD_START_S = 1.0


def main() -> None:
    device = find_ipc_device(0)
    waited, other = device.allocate(1 << 20), device.allocate(1 << 20)
    values = torch.zeros(4, device=device.torch_device)
    lane = device.new_lane()
    lane.wait_word(waited, 0, 1)
    mark = lane.mark()
    work = {"free": other.close, "load": lambda: _load(device, values)}[sys.argv[1]]
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_HEAD_START_S)
    assert not mark.is_reached()
    waited.put_word(0, 1)
    thread.join()
    lane.fetch(waited, 0, 4)
    assert mark.is_reached()


def _load(device: CudaIpcDevice, values: torch.Tensor) -> None:
    """A kernel that nothing has launched before: CUDA loads it now."""
    with torch.cuda.stream(torch.cuda.Stream(device.torch_device)):
        torch.special.bessel_j0(values)


if __name__ == "__main__":
    main()
