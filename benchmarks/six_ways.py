"""One 70B model laid out in six ways on the same GPUs, which are not here: memory, bubble, exchanges, time.

docs/guides/will_it_fit.md has rows of the table that it prints. Each way is compiled for the target, one after the
other, each in a process of its own: minutes, and a few GiB.

    python benchmarks/six_ways.py [--target h100:8x8] [--model llama3-70b] [--batch 128]
"""

import argparse
import datetime
import json
import subprocess
import sys

WAYS = {
    "fsdp": "data={all}",
    "fsdp+tp": "data={rest},model=8",
    "fsdp+tp+sp": "data={rest},model=8",
    "hsdp": "data=2,fsdp={half}",
    "pp+fsdp+tp:microbatches=8,repeats=2": "stage=4@hosts,data={of_stage},model=4",
    "fsdp+cp:exchange=all_to_all": "data={half},context=2",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="h100:8x8")
    parser.add_argument("--model", default="llama3-70b")
    parser.add_argument("--batch", default="128")
    parser.add_argument("--remat", default="full")
    asked = parser.parse_args()
    hosts, each = (int(number) for number in asked.target.partition(":")[2].split("x"))
    num = hosts * each
    sizes = {"all": num, "rest": num // 8, "half": num // 2, "of_stage": num // 16}
    words = ["lm", "--model", asked.model, "--batch", asked.batch, "--remat", asked.remat, "--loss-chunks", "8"]
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: python benchmarks/six_ways.py {' '.join(sys.argv[1:])}\n")
    print("| layout | mesh | a step | memory | sent by a device | waits | bubble | over network |")
    print("|---|---|---|---|---|---|---|---|")
    for layout, mesh in WAYS.items():
        where = ["--layout", layout, "--mesh", mesh.format(**sizes), "--target", asked.target]
        print(row(layout, mesh.format(**sizes), explained([*words, *where])), flush=True)


def explained(words):
    command = [sys.executable, "-m", "outlay", "explain", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def row(layout, mesh, facts):
    estimate, memory, gib = facts["estimate"], facts["memory"], 2**30
    sent = facts["bytes_per_step"] / gib
    network = sum(one["bytes_per_step"] for one in facts["collectives"] if one["crosses_hosts"]) / gib
    cells = [
        f"`{layout}`",
        f"`{mesh}`",
        f"{estimate['seconds_low']:.1f} to {estimate['seconds_high']:.1f} s",
        f"{memory['peak'] / gib:.1f} GiB" + ("" if facts["fits"] else ", does not fit"),
        f"{sent:.0f} GiB",
        f"{estimate['parts']['communication']:.2f} s",
        bubble(layout, mesh),
        f"{network:.0f} GiB",
    ]
    return f"| {' | '.join(cells)} |"


def bubble(layout, mesh):
    """Return the idle share of a pipeline's ticks, (S - 1) / (M R + S - 1)."""
    options = dict(part.split("=") for part in layout.partition(":")[2].split(",") if part)
    stages = next((int(axis.partition("=")[2].partition("@")[0]) for axis in mesh.split(",") if "stage" in axis), 1)
    if stages == 1:
        return "none"
    turns = int(options["microbatches"]) * int(options.get("repeats", 1))
    return f"{(stages - 1) / (turns + stages - 1):.0%}"


if __name__ == "__main__":
    main()
