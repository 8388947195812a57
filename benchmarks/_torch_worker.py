"""One of two processes that train the MLP with PyTorch; `processes.py` starts it, and asks for steps on stdin."""

import sys

import numpy as np
import torch
import torch.distributed
from _pair import serve
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH, BATCH = 1024, 4, 64


def main(wrapper, rank, port):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(DEPTH)]
    model = torch.nn.Sequential(*layers)
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    generator = np.random.default_rng(0)
    own_samples = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    x, y = (torch.tensor(generator.standard_normal((BATCH, WIDTH), dtype=np.float32)[own_samples]) for _ in "xy")

    def run(num_steps):
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            value = loss.item()
        return value

    serve(run)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
