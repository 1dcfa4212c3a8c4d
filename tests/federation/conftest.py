import torch

torch.set_num_threads(1)  # networks of some forty numbers: threads only wait for one another
