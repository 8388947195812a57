"""Run folders made by hand, as a run leaves them in any state."""

import json
import os
import socket

from outlay.core.own_folder import MARK, mark

MESH = {"axes": {"data": 8}, "device_ids": list(range(8)), "hosts": [0] * 8, "kind": "simulated", "platform": "cpu"}


def folder_of_run(path, *, steps=6, of=6, end="finished", after=0, loss=lambda step: 2.0 / step, **config):
    """Write a run of so many steps of 16 samples, each half a second, of which a fifth waits for input."""
    path.mkdir(parents=True, exist_ok=True)
    if not (path / MARK).exists():
        mark(path, "run folder", "0a1b2c3d")
    with (path / MARK).open("a") as file:
        file.write(f"\nin use since 2026-01-01T00:00:00+00:00 by process 1 on {socket.gethostname()}")
    about = {"recipe": "line", "layout": "fsdp", "mesh": MESH, "num_steps": of, "seed": 3, "command": "outlay run line"}
    batch = {"batch.x": {"shape": [16, 4], "dtype": "float32"}}
    (path / "config.json").write_text(json.dumps({**about, "batch": batch, "checkpoint_every": None, **config}))
    with (path / "metrics.jsonl").open("a") as file:
        for step in range(after + 1, steps + 1):
            more = {"evaluate.loss": loss(step) + 0.5} if step % 3 == 0 else {}
            file.write(json.dumps({"step": step, "loss": loss(step), **more, "seconds": 0.5 * step}) + "\n")
    with (path / "times.jsonl").open("a") as file:
        file.write(json.dumps({"began": 1.7e9, "after": after, "of": of, "processes": 2, "memory_of": "device"}) + "\n")
        for step in (after + 1, steps):
            seconds = {"steps": 0.4 * (step - after), "input": 0.1 * (step - after), "compile": 1.0}
            file.write(json.dumps({"step": step, "seconds": seconds, "memory": 2**20 * step}) + "\n")
        if end:
            file.write(json.dumps({"step": steps, "seconds": seconds, "memory": 2**20, "end": end}) + "\n")
    os.utime(path / "times.jsonl", (1.7e9, 1.7e9))
    return path
