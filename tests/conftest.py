"""What all tests share."""

import torch

# One thread a process is steadier than two where services run beside the tests.
torch.set_num_threads(1)
