"""A published run that can be built: the options of `lm`, its layout, and the target."""

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Literal

from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.published_experts import EXPERT_MODELS
from outlay.schedules import interleaved, one_f_one_b

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

# Frameworks that cut a pipeline by what its blocks compute, head included; all others take as many layers everywhere.
# nanotron: `get_block_compute_costs` of its models, and src/nanotron/models/base.py, which gives blocks to stages.
BALANCES_STAGES = ("nanotron",)

# What a recipe sets that changes the program itself, by what the notes of its row call it: products of gathered arrays
# wait for the whole array, and do not multiply each part as it comes (DISABLE_COLLECTIVE_MATMUL of MaxText's
# benchmarks/xla_flags_library.py). What else its recipes set for speed, Outlay's preset has too.
FLAGS = {"collective matmul off": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}}


@dataclass(frozen=True)
class Layout:
    """Which axes a row splits what over.

    Attributes:
        mesh: axis name to size; `stage` are stages of a pipeline, devices of `context` share the tokens of a sequence,
            and those of `expert` the experts.
        microbatches: of a pipeline, of each replica.
        repeats: how often a microbatch goes through the stages.
        params: the axis that parameters are split over besides `model`; empty where they are whole.
        optimizer: likewise of the optimizer's state.
        gradients: whether gradients are split as the optimizer's state is; if not, and that is split, they are whole
            while microbatches are added (ZeRO stage 1).
        sequence: whether the residual stream is split along the sequence over `model`.
    """

    mesh: dict[str, int]
    microbatches: int = 1
    repeats: int = 1
    params: str = ""
    optimizer: str = ""
    gradients: bool = False
    sequence: bool = False

    @property
    def batch(self) -> tuple[str, ...]:
        """The axes that samples are split over."""
        return tuple(axis for axis in self.mesh if axis in ("data", "fsdp", "expert"))

    @property
    def replicas(self) -> int:
        """The number of parts of a batch."""
        return math.prod(self.mesh[axis] for axis in self.batch)

    @property
    def stages(self) -> int:
        """The number of stages of its pipeline; 1 without one."""
        return self.mesh.get("stage", 1)

    @property
    def text(self) -> str:
        """The mesh as text; stages, parts of sequences and experts may lie on several hosts."""
        across = dict.fromkeys(("stage", "context", "expert"), "@hosts")
        return ",".join(f"{axis}={size}{across.get(axis, '')}" for axis, size in self.mesh.items())

    @property
    def name(self) -> str:
        """What the field calls it, and `lm` where it has it."""
        zero = "zero2" if self.gradients else "zero1" if self.optimizer else ""
        fully = ("hsdp" if "fsdp" in self.mesh else "fsdp") if self.params else zero
        tensor = "tp" if "model" in self.mesh else ""
        stages, experts = ("pp" if self.stages > 1 else ""), ("ep" if "expert" in self.mesh else "")
        tokens = ["sp" if self.sequence else "", "cp" if "context" in self.mesh else ""]
        return "+".join(filter(None, [stages, experts, fully, tensor, *tokens])) or "dp"


@dataclass(frozen=True)
class Run:
    """A published run, ready to be built.

    Attributes:
        row: the row of the file.
        words: the options of the recipe, as on the command line.
        layout: how it is laid out.
        target: the hardware.
        assumed: what the source does not print.
    """

    row: dict[str, str]
    words: tuple[str, ...]
    layout: Layout
    target: str
    assumed: tuple[str, ...]

    @property
    def id(self) -> str:
        """The row's name."""
        return self.row["id"]

    @property
    def recipe(self) -> str:
        """The recipe that it is: `moe` with experts, `lm` without."""
        return "moe" if experts_of(self.row) else "lm"

    @property
    def options(self) -> dict[str, str]:
        """The options of the recipe by name."""
        return dict(zip(self.words[::2], self.words[1::2], strict=True))

    @property
    def programs(self) -> tuple["Run", ...]:
        """The programs to compile: itself; of a pipeline two with fewer microbatches.

        One program runs all forward passes first, and holds what the schedules of published pipelines never hold at
        once. Time and memory grow by as much with each microbatch, so that two programs give both, for as many
        microbatches as a step has, and as are held at once.
        """
        if self.layout.stages == 1:
            return (self,)
        return tuple(self._with_microbatches(num * self.layout.stages) for num in (1, 2))

    @property
    def microbatches(self) -> int:
        """The number of microbatches of a replica."""
        return self.layout.microbatches * int(self.options["--accumulate"])

    @property
    def most_held(self) -> float:
        """How many microbatches its programs would have if they held what the first stage holds by the run's schedule.

        A program keeps what each tick computes, those in which a stage idles too; a schedule what each microbatch did.
        """
        stages, repeats = self.layout.stages, self.layout.repeats
        is_interleaved = repeats > 1
        schedule = (
            interleaved(stages, self.microbatches, repeats)
            if is_interleaved
            else one_f_one_b(stages, self.microbatches)
        )
        return (schedule.peak_held[0] - (stages - 1)) / repeats

    @property
    def has_a_shorter_stage(self) -> bool:
        """Whether layers do not divide over the stages: then those with embedding and head have fewer."""
        return num_layers(self.row) != printed_layers(self.row)

    @property
    def balances_stages(self) -> bool:
        """Whether its framework gives the stage with the head fewer layers."""
        return self.source in BALANCES_STAGES

    def _with_microbatches(self, num: int) -> "Run":
        batch = int(self.options["--batch"]) // self.microbatches * num
        words = tuple(word for option in (self.options | {"--batch": str(batch)}).items() for word in option)
        return dataclasses.replace(self, words=words, layout=dataclasses.replace(self.layout, microbatches=num))

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
    def flags(self) -> dict[str, int]:
        """Options of the compiler that its recipe sets, besides those of Outlay's preset."""
        return {
            name: value
            for name_of, some in FLAGS.items()
            if name_of in self.row["notes"]
            for name, value in some.items()
        }

    @property
    def keeps_all(self) -> bool:
        """Whether its framework keeps all that a layer computes, and logits in float32."""
        return self.source in KEEPS_ALL

    @property
    def held(self) -> float:
        """Bytes that its framework holds on a device at the peak, and a program of Outlay does not."""
        if not self.keeps_all:
            return 0.0
        sequences = int(self.options["--batch"]) // self.layout.replicas // self.microbatches
        config = config_of(self.row)
        logits = sequences * int(self.options["--sequence"]) * config.vocabulary / self.layout.mesh.get("model", 1)
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


def number(row, column, default) -> int:
    """Return a number of a row; a default where its source prints none."""
    return int(float(row[column])) if row.get(column) else default


def num_layers(row) -> int:
    """Return the layers of a row: where they do not divide over the stages, as many everywhere as the longest has."""
    places = number(row, "pp", 1) * number(row, "vp", 1)
    return -(-printed_layers(row) // places) * places


def printed_layers(row) -> int:
    """Return the layers of a row's model."""
    name = experts_of(row)
    return EXPERT_MODELS[name].config.num_layers if name else number(row, "layers", 0)


def experts_of(row) -> str:
    """Return the name of a row's model among those with experts; empty where it is none of them.

    Sources name these, and print no sizes.
    """
    name = re.sub(r"[\W_]+", "-", row["model"].lower()).removesuffix("-like")
    name = {"deepseekv3": "deepseek-v3", "deepseek-v3-671b": "deepseek-v3"}.get(name, name)
    return next((one for one in EXPERT_MODELS if one.removesuffix("-like") == name), "")


def config_of(row) -> TransformerConfig:
    """Return the transformer of a row; what kind it is follows from the framework and from whether it has a gate."""
    if model := experts_of(row):
        return dataclasses.replace(EXPERT_MODELS[model].config, num_layers=num_layers(row))
    gated, heads, width = row["ffn_gated"] == "1", number(row, "heads", 0), number(row, "width", 0)
    # MaxText's own sizes have no gate either; its GPT-3 is as everybody's.
    maxtext = "MaxText" in row["framework"] and not row["model"].startswith("gpt")
    gpt = not gated and not maxtext
    return TransformerConfig(
        # Padded so that it can be split, as those who trained it did.
        vocabulary=-(-number(row, "vocab", 51_200) // number(row, "tp", 1)) * number(row, "tp", 1),
        width=width,
        num_layers=num_layers(row),
        num_heads=heads,
        num_kv_heads=number(row, "kv_heads", heads),
        head_dim=number(row, "head_dim", width // heads),
        hidden=number(row, "ffn_hidden", 0),
        tied=row["tied"] == "1" or (gpt and not row["tied"]),
        gated=gated,
        activation="silu" if gated else "relu" if maxtext else "gelu",
        positions="learned" if gpt else "rotary",
        num_positions=number(row, "seq_len", 0),
        norm="layer" if gpt else "rms",
        biases=gpt and "Mosaic" not in row["framework"],
        rotary_base=10_000.0,
        # MaxText's num_vocab_tiling; here pieces of the sequence, as large.
        loss_chunks=4 if "logits in four pieces" in row["notes"] else 1,
    )
