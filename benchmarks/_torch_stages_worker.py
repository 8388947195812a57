"""One of two processes that are stages of the MLP with PyTorch; `pipeline_processes.py` starts it, and asks."""

import sys

import numpy as np
import torch
import torch.distributed
from _pair import serve
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, DEPTH, BATCH = 1024, 4, 64


def main(samples, microbatches, rank, port):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(DEPTH // 2)]
    model = torch.nn.Sequential(*layers)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    generator = np.random.default_rng(0)
    x, y = (
        torch.tensor(generator.standard_normal((BATCH, WIDTH), dtype=np.float32)).repeat(samples // BATCH, 1)
        for _ in "xy"
    )

    def run(num_steps):
        value = 0.0
        for _ in range(num_steps):
            optimizer.zero_grad()
            losses = []
            schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
            optimizer.step()
            value = sum(loss.item() for loss in losses) / microbatches
        return value

    serve(run)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
