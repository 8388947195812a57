"""A published run in words that Outlay understands: the options of `lm`, the layout, the mesh and the target.

What cannot be expressed is named with its reason, never left out silently. What a source does not print is filled in by
one rule for all rows, and `assumed` says so.
"""

import csv
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outlay.core.error_types import OutlayError
from outlay.devices.target import Target
from outlay.models.transformer.config import TransformerConfig, remat_problems
from outlay.models.transformer.published import MODELS

RUNS = Path(__file__).parent / "data" / "published_runs.csv"

# A batch without a microbatch is taken in pieces of at most so many sequences a device.
MICROBATCH = 4
REMAT = {
    "full": "full",
    "none": "none",
    "": "none",
    "not stated": "none",
    "attention only (selective)": "attention",
    "minimal_flash": "products",
}


# What the fused attention of its time reached of the peak, where that is not the kernel that Outlay's programs have.
# FlashAttention 1 reached 25 to 40 % of an A100 (arXiv:2307.08691, abstract), and its Triton form on H100 what these
# long sequences say; FlashAttention-2 on H100 335 TFLOP/s forward and 322 backward (arXiv:2407.08608, figures 5 and 6).
KERNELS = {
    "MosaicML llm-foundry": {"a100": 0.33, "h100": 0.18},
    "nanotron": {"h100": 0.33},
}


# Frameworks that keep all that a layer computes for its backward pass, and logits and their softmax in float32, by
# their own source. nanotron (huggingface/nanotron, src/nanotron): models/llama.py has no recomputation, so that the
# output of silu is kept, which Outlay's layer computes again; `_ShardedCrossEntropy` of
# parallel/tensor_parallel/functional.py takes float32 logits and keeps their softmax beside them, where Outlay's loss
# has both in 16 bits.
KEEPS_ALL = ("nanotron",)


NARROW = ("FP8", "FP4", "FLOAT8", "FLOAT4", "F8", "E4M3", "E5M2", "INT8")
"""Of a precision whose products take narrower numbers than 16 bits, by any of their names."""
FP8_BY_TENSOR, OTHER_SCALES = ("FP8", "FLOAT8"), ("MX", "ROW", "BLOCK")
"""How precisions of 8 bits with a scale for each tensor begin, and what their names have with other scales."""


@dataclass(frozen=True)
class Obstacle:
    """What stands in the way of a row.

    Attributes:
        kind: what it has in common with those of other rows.
        text: what it is here.
    """

    kind: str
    text: str


class CannotExpressError(Exception):
    """A row that `lm` and the layouts have no words for; the message says all that stands in the way."""

    def __init__(self, *obstacles: Obstacle) -> None:
        super().__init__("; ".join(one.text for one in obstacles))
        self.obstacles = obstacles


def obstacles(refused):
    """Return each kind of obstacle with the rows that have it, and those that have no other, the most such first.

    Args:
        refused: why rows cannot be expressed, by name.
    """
    kinds = {one.kind for error in refused.values() for one in error.obstacles}
    every = {kind: [name for name, error in refused.items() if kind in _kinds(error)] for kind in kinds}
    alone = {kind: [name for name in names if len(_kinds(refused[name])) == 1] for kind, names in every.items()}
    return sorted(((kind, every[kind], alone[kind]) for kind in kinds), key=lambda one: (-len(one[2]), -len(one[1])))


def _kinds(error):
    return {one.kind for one in error.obstacles}


@dataclass(frozen=True)
class Layout:
    """Which axes a row splits what over.

    Attributes:
        mesh: axis name to size.
        params: the axis that parameters are split over besides `model`; empty where they are whole.
        optimizer: likewise of the optimizer's state.
        gradients: whether gradients are split as the optimizer's state is; if not, and that is split, they are whole
            while microbatches are added (ZeRO stage 1).
        sequence: whether the residual stream is split along the sequence over `model`.
        repeats: how often a microbatch goes round the stages; 0 without a pipeline.
        is_wide: whether the stages lie across hosts.
    """

    mesh: dict[str, int]
    params: str = ""
    optimizer: str = ""
    gradients: bool = False
    sequence: bool = False
    repeats: int = 0
    is_wide: bool = False

    @property
    def batch(self) -> tuple[str, ...]:
        """The axes that samples are split over."""
        return tuple(axis for axis in self.mesh if axis not in ("model", "stage"))

    @property
    def replicas(self) -> int:
        """Into how many parts samples are split."""
        return math.prod(self.mesh[axis] for axis in self.batch)

    @property
    def text(self) -> str:
        """The mesh as text."""
        wide = {"stage": "@hosts"} if self.is_wide else {}
        return ",".join(f"{axis}={size}{wide.get(axis, '')}" for axis, size in self.mesh.items())

    @property
    def name(self) -> str:
        """What the field calls it, and `lm` where it has it."""
        zero = "zero2" if self.gradients else "zero1" if self.optimizer else ""
        fully = ("hsdp" if "fsdp" in self.mesh else "fsdp") if self.params else zero
        tensor = "tp" if "model" in self.mesh else ""
        names = ["pp" if self.repeats else "", fully, tensor, "sp" if self.sequence else ""]
        return "+".join(filter(None, names)) or "dp"


@dataclass(frozen=True)
class Run:
    """A published run, ready to be built.

    Attributes:
        row: the row of the file.
        words: the options of `lm`, as on the command line.
        layout: how it is laid out.
        target: the hardware.
        assumed: what the source does not print.
        microbatches: in how many parts its pipeline takes the batch; 1 without one.
    """

    row: dict[str, str]
    words: tuple[str, ...]
    layout: Layout
    target: str
    assumed: tuple[str, ...]
    microbatches: int = 1

    @property
    def id(self) -> str:
        """The row's name."""
        return self.row["id"]

    @property
    def seconds(self) -> float | None:
        """Published seconds of a step, as printed or as they follow from what is."""
        text = self.row["step_time_s"] or self.row["derived_step_time_s"]
        return float(text) if text else None

    @property
    def memory(self) -> float | None:
        """Published peak memory of a device in bytes."""
        text = self.row["memory_gib_per_device"]
        return float(text) * 2**30 if text else None

    @property
    def precision(self) -> Literal["fp8"] | None:
        """What its layers multiply, as the option of `lm`; None for the model's dtype."""
        return "fp8" if "--precision" in self.words else None

    @property
    def writes_scores(self) -> bool:
        """Whether its attention wrote scores to memory, as all did before there were fused kernels."""
        return self.row["attention"].startswith("not ")

    @property
    def source(self) -> str:
        """The framework, without its version."""
        return self.row["framework"].split(" (")[0].removeprefix("JAX ").split(" 2")[0]

    @property
    def keeps_all(self) -> bool:
        """Whether its framework keeps all that a layer computes, and logits in float32."""
        return self.source in KEEPS_ALL

    @property
    def held(self) -> float:
        """Bytes that its framework holds on a device at the peak, and a program of Outlay does not."""
        if not self.keeps_all:
            return 0.0
        words = dict(zip(self.words[::2], self.words[1::2], strict=True))
        pieces = int(words["--accumulate"]) * self.microbatches
        sequences = int(words["--batch"]) // self.layout.replicas // pieces
        config = config_of(self.row)
        logits = sequences * int(words["--sequence"]) * config.vocabulary / self.layout.mesh.get("model", 1)
        return 2 * logits * (4 - 2)

    @property
    def is_timed(self) -> bool:
        """Whether its time can be used; of rows of quality C at most their memory can."""
        return self.seconds is not None and self.row["quality"] in "AB"

    @property
    def kernels(self) -> dict[str, dict[str, float]]:
        """The constants of its fused attention by kind of hardware, where that was an earlier kernel."""
        return {key: {"kernels": share} for key, share in KERNELS.get(self.source, {}).items()}

    @property
    def command(self) -> str:
        """What prices it at the command line."""
        return f"python benchmarks/published.py --row {self.id}"


def read_rows(path):
    """Read the rows of a file of runs.

    Raises:
        SystemExit: it is no such file; the message lists the columns that it lacks.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with open(RUNS, newline="", encoding="utf-8") as file:
        columns = next(csv.reader(file))
    lacking = [name for name in columns if not rows or name not in rows[0]]
    if lacking:
        raise SystemExit(f"{path} is not a file of runs: it lacks the columns {', '.join(lacking)}")
    return rows


def run_of(row) -> Run:
    """Express a row in Outlay's words.

    Raises:
        CannotExpressError: there are none for it.
    """
    in_the_way, assumed = [*_not_expressed(row)], []
    if not any(one.kind == NOT_PRINTED for one in in_the_way):
        layout, words, target = (_or_obstacles(make, in_the_way, row, assumed) for make in (_layout, _words, target_of))
    if in_the_way:
        raise CannotExpressError(*dict.fromkeys(in_the_way))
    if layout.repeats:
        # Tensor parallelism and replicas come first inside a host, as Megatron numbers its processes.
        layout = dataclasses.replace(layout, is_wide=Target.parse(target).num_islands > 1)
    return Run(row, words, layout, target, tuple(assumed), _pieces(row, layout) if layout.repeats else 1)


def _or_obstacles(make, in_the_way, *args):
    """Return what a function makes of a row; or None, with what stands in its way."""
    try:
        return make(*args)
    except CannotExpressError as error:
        in_the_way += error.obstacles
        return None


NOT_PRINTED = "not printed"


def _not_expressed(row):
    if any(narrow in row["precision"].upper() for narrow in NARROW) and not _is_fp8(row):
        yield Obstacle("products of 8 bits with scales of blocks, or of fewer", f"{row['precision']} products")
    for column, what in (("ep", "experts over devices"), ("cp", "context parallelism")):
        if _int(row, column, 1) > 1:
            yield Obstacle(what, f"{what} of {row[column]}")
    lacking = [name for name in ("layers", "width", "heads", "ffn_hidden", "seq_len", "num_devices") if not row[name]]
    lacking += [] if row["global_batch_seqs"] or row["microbatch_seqs"] else ["global_batch_seqs"]
    if lacking:
        yield Obstacle(NOT_PRINTED, f"not printed: {', '.join(lacking)}")
    elif row["params_b"] and float(row["params_b"]) > 1.5 * config_of(row).num_params / 1e9:
        yield Obstacle("experts", "experts")


def _is_fp8(row):
    name = row["precision"].upper().partition("(")[0]
    return name.startswith(FP8_BY_TENSOR) and not any(other in name for other in OTHER_SCALES)


def _int(row, column, default):
    return int(float(row[column])) if row.get(column) else default


def config_of(row) -> TransformerConfig:
    """Return the transformer of a row; what kind it is follows from the framework and from whether it has a gate."""
    gated, heads, width = row["ffn_gated"] == "1", _int(row, "heads", 0), _int(row, "width", 0)
    # MaxText's own sizes have no gate either; its GPT-3 is as everybody's.
    maxtext = "MaxText" in row["framework"] and not row["model"].startswith("gpt")
    gpt = not gated and not maxtext
    return TransformerConfig(
        # Padded so that it can be split, as those who trained it did.
        vocabulary=-(-_int(row, "vocab", 51_200) // _int(row, "tp", 1)) * _int(row, "tp", 1),
        width=width,
        num_layers=_int(row, "layers", 0),
        num_heads=heads,
        num_kv_heads=_int(row, "kv_heads", heads),
        head_dim=_int(row, "head_dim", width // heads),
        hidden=_int(row, "ffn_hidden", 0),
        tied=row["tied"] == "1" or (gpt and not row["tied"]),
        gated=gated,
        activation="silu" if gated else "relu" if maxtext else "gelu",
        positions="learned" if gpt else "rotary",
        num_positions=_int(row, "seq_len", 0),
        norm="layer" if gpt else "rms",
        biases=gpt and "Mosaic" not in row["framework"],
        rotary_base=10_000.0,
    )


def _layout(row, assumed=None) -> Layout:
    stages, repeats = _int(row, "pp", 1), max(1, _int(row, "vp", 1))
    if _int(row, "layers", 0) % (stages * repeats) and stages > 1:
        rounds = f" x {repeats} rounds" if repeats > 1 else ""
        raise _does_not_divide(f"{row['layers']} layers do not divide into {stages} equal stages{rounds}")
    # Those that stages and parts of sequences take are no replicas.
    devices, model = _int(row, "num_devices", 1) // stages // _int(row, "cp", 1), _int(row, "tp", 1)
    data, stage = devices // model, row["zero_stage"]
    inside = _int(row, "fsdp", data if stage == "3" else 1)
    if inside * model > devices or devices % (inside * model):
        raise _does_not_divide(f"{devices} devices are not {inside} x {model} or a multiple of it")
    hybrid = 1 < inside < data
    mesh = {"stage": stages} if stages > 1 else {}
    mesh |= {"data": data // inside, "fsdp": inside} if hybrid else {"data": data}
    # MaxText splits the features of the residual stream, where sequence parallelism splits its places: as many bytes.
    sequence = model > 1 and (row["sp"] == "1" or "MaxText" in row["framework"])
    split = "fsdp" if hybrid else "data"
    return Layout(
        mesh={**mesh, "model": model} if model > 1 else mesh,
        params=split if inside > 1 and stage != "2" else "",
        optimizer="data" if stage in ("1", "2") and data > 1 else "",
        gradients=stage == "2",
        sequence=sequence,
        repeats=repeats if stages > 1 else 0,
    )


def _does_not_divide(text):
    return CannotExpressError(Obstacle("sizes that do not divide", text))


def _words(row, assumed):
    config, layout = config_of(row), _layout(row)
    pieces = _pieces(row, layout, assumed)
    remat = REMAT.get(row["remat"], row["remat"])
    if problems := remat_problems(remat, config.num_layers):
        raise CannotExpressError(*(Obstacle("remat by a name that is unknown", problem) for problem in problems))
    if row["remat"] in ("", "not stated"):
        assumed.append("no remat")
    if not row["vocab"]:
        assumed.append("vocabulary of 51200")
    options = {
        "sequence": row["seq_len"],
        "batch": _batch(row, layout),
        "accumulate": 1 if layout.repeats else pieces,
        "remat": remat,
        **_numbers(row, assumed),
    }
    return (*_model_words(config), *_flags(options))


def same_in_all_layouts(row, model=None):
    """Return the options that a row has however it is laid out: the model, the batch and the numbers of its step.

    Args:
        row: the row.
        model: the options of the model, where the row does not print its sizes.
    """
    options = {"sequence": row["seq_len"], "batch": row["global_batch_seqs"], **_numbers(row, [])}
    return (*(_model_words(config_of(row)) if model is None else model), *_flags(options))


def _numbers(row, assumed):
    """Return in what numbers a row computes and keeps its state."""
    numbers = {"dtype": "bfloat16", **_dtypes(row, assumed)}
    if _is_fp8(row):
        numbers["precision"] = "fp8"
        assumed.append("FP8 of all kernels of layers, scaled by their largest entries now")
    return numbers


def _flags(options):
    return (word for name, value in options.items() for word in (_flag(name), str(value)))


def _batch(row, layout):
    micro, pieces = _int(row, "microbatch_seqs", 0), max(1, _int(row, "grad_accum", 1))
    return _int(row, "global_batch_seqs", 0) or micro * layout.replicas * pieces


def _pieces(row, layout, assumed=None):
    """Return in how many microbatches each replica takes its sequences."""
    batch, micro, pieces = _batch(row, layout), _int(row, "microbatch_seqs", 0), _int(row, "grad_accum", 0)
    if batch % layout.replicas:
        raise _does_not_divide(f"a batch of {batch} does not divide over {layout.replicas} replicas")
    each = batch // layout.replicas
    if not micro and not pieces:
        # The more microbatches a pipeline has, the less of it is idle.
        most = 1 if layout.repeats else MICROBATCH
        micro = next(size for size in range(min(most, each), 0, -1) if each % size == 0)
        if assumed is not None:
            assumed.append(f"microbatch of {micro}")
    pieces = pieces or max(1, each // micro)
    if each % pieces:
        raise _does_not_divide(f"{each} sequences of a replica are not {pieces} microbatches")
    stages = layout.mesh.get("stage", 1)
    if stages > 1 and pieces < (stages if layout.repeats > 1 else 2):
        raise _does_not_divide(f"{pieces} microbatches are too few for {stages} stages")
    return pieces


def _dtypes(row, assumed):
    state = row["state_dtype"]
    if state.startswith("bfloat16 all"):
        return {"param-dtype": "bfloat16", "optimizer-dtype": "bfloat16"}
    if state.startswith("bf16 params") or (not state and row["precision"] in ("fp16", "BF16")):
        if not state:
            assumed.append("16-bit parameters with float32 masters")
        return {"param-dtype": "bfloat16", "optimizer-dtype": "float32"}
    return {"param-dtype": "float32"}


def _model_words(config):
    """Return the nearest published model, and the options that make the rest of the difference."""
    how = {"dtype": config.dtype, "param_dtype": config.param_dtype, "num_positions": config.num_positions}

    def differences(name):
        other = dataclasses.replace(MODELS[name].config, **how)
        return {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != getattr(other, field.name) and field.name != "rotary_base"
        }

    name = min(MODELS, key=lambda name: len(differences(name)))
    flags = {"num_layers": "layers", "num_heads": "heads", "num_kv_heads": "kv_heads"}
    words = ["--model", name]
    for field, value in differences(name).items():
        words.append(_flag(flags.get(field, field)))
        words.append(str(value).lower() if isinstance(value, bool) else str(value))
    return words


def _flag(name):
    return f"--{name.replace('_', '-')}"


def target_of(row, assumed=None):
    """Return the target of a row; A3 hosts have a network of their own, and a domain of GB200 and GB300 has 72 GPUs."""
    text, devices = row["outlay_target"].strip(" *"), _int(row, "num_devices", 1)
    if text.startswith("missing: "):
        key = text.removeprefix("missing: ")
        each = next(size for size in (72, 64, 36, 32, 16, 8, 4, 2, 1) if devices % size == 0 and _holds(key, size))
        text = f"{key}:{devices // each}x{each}"
        if assumed is not None:
            assumed.append(f"hosts of {each}")
    if "A3" in row["hardware"] and text.startswith("h100:"):
        text = text.replace("h100:", "h100-a3:")
    try:
        target = Target.parse(text)
    except OutlayError as error:
        text = f"target {row['outlay_target']!r}: {str(error).splitlines()[0]}"
        raise CannotExpressError(Obstacle("no such target", text)) from None
    if target.num_devices != devices:
        text = f"{text} has {target.num_devices} devices, the run {devices}"
        raise CannotExpressError(Obstacle("a target of another size", text))
    return str(target)


def _holds(key, size):
    try:
        Target.parse(f"{key}:1x{size}")
    except OutlayError:
        return False
    return True
