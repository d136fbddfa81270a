"""One end of a stream in a process of its own, over a shared device: does what the lines of its input say.

Arguments: directory of the device, or "cuda" for a real one; limit of a wait in seconds. Each line is a word and a
message in hex; each answer is one line: a message in hex, or JSON.
"""

import json
import mmap
import sys
from pathlib import Path

import torch
from allroads.cuda.device_memory import HostWords, IpcDevice
from allroads.cuda.ipc import find_ipc_device
from allroads.cuda.upload import upload
from allroads.mesh.cuda_ipc import CudaIpcTransport
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import common_pb2 as pb

from .shared_device import SharedDevice


def main() -> None:
    torch.set_num_threads(1)
    device: IpcDevice = find_ipc_device(0) if sys.argv[1] == "cuda" else SharedDevice(Path(sys.argv[1]))
    transports = [CudaIpcTransport(lambda: device, float(sys.argv[2]))]
    sender = TensorSender("peer", slot_bytes=4096, num_slots=2, transports=transports)
    receiver = TensorReceiver("peer", transports)
    stalled: list[HostWords] = []
    for line in sys.stdin:
        what, *rest = line.split()
        message = bytes.fromhex(rest[0]) if rest else b""
        answer: object = None
        match what:
            case "register":
                answer = receiver.register(pb.Region.FromString(message)).SerializeToString().hex()
            case "read":
                received = receiver.read([pb.TensorRef.FromString(message)])
                received.join()
                answer = [str(value) for value in received.tensors[0].tolist()]
            case "offer":
                region = sender.open()
                assert region is not None
                answer = region.SerializeToString().hex()
            case "registered":
                answer = sender.on_registered(pb.Registered.FromString(message)) is None
            case "pack":
                (reference,) = sender.pack(int(rest[1]), [upload(json.loads(message), device.torch_device)])
                answer = reference.SerializeToString().hex()
            case "stall":
                # All that it queues from now on waits, as if its device had stopped.
                stalled.append(device.register(mmap.mmap(-1, mmap.PAGESIZE)))
                device.current_lane().wait_word(stalled[-1], 0, 1)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
