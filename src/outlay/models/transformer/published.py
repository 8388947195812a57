"""Named transformer configurations: three that train on a laptop, and published ones with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from outlay.models.transformer.config import TransformerConfig

OURS = "made for Outlay"
LLAMA_2 = "Touvron et al. (2023), arXiv:2307.09288, table 1"
LLAMA_3 = "Grattafiori et al. (2024), arXiv:2407.21783, table 3"
LLAMA_32 = "the model cards of Llama 3.2 1B and 3B (Meta, 2024)"
MPT = "MosaicML llm-foundry at 8c8dd48f7, scripts/train/yamls/pretrain"
GPT_3 = "Brown et al. (2020), arXiv:2005.14165, table 2.1"
MEGATRON = "Narayanan et al. (2021), arXiv:2104.04473, table 1"
MEGATRON_SP = "Korthikanti et al. (2022), arXiv:2205.05198, table 3"
NEOX = "Black et al. (2022), arXiv:2204.06745, section 2"
MAXTEXT = (
    "MaxText at 632f65147, MaxText/configs/base.yml with the global_parameter_scale of v4/README.md or v5e/README.md"
)
NANOTRON = "Hugging Face bench_cluster at ff4e522, create_configs.py"


@dataclass(frozen=True)
class PublishedModel:
    """A named model.

    Attributes:
        config: its configuration.
        source: where the configuration is published.
        sequence: the tokens per example in its training.
        batch: the default examples per step.
        learning_rate: the peak learning rate.
    """

    config: TransformerConfig
    source: str
    sequence: int
    batch: int = 256
    learning_rate: float = 3e-4


def _llama(
    source: str, vocabulary: int, width: int, layers: int, heads: tuple[int, int], hidden: int, sequence: int,
    *, tied: bool = False, base: float = 500_000.0,
) -> PublishedModel:  # fmt: skip
    config = TransformerConfig(
        vocabulary, width, layers, *heads, width // heads[0], hidden, tied=tied, rotary_base=base
    )
    return PublishedModel(config, source, sequence)


def _gpt(source: str, layers: int, width: int, heads: int, vocabulary: int = 51_200, **other: bool) -> PublishedModel:
    """Configure a GPT-2: learned positions, layer norms, biases, ungated GELU, hidden size four times the width."""
    config = TransformerConfig(
        vocabulary,
        width,
        layers,
        heads,
        heads,
        width // heads,
        4 * width,
        tied=other.get("tied", True),
        gated=False,
        activation="gelu",
        positions="learned",
        norm="layer",
        biases=True,
    )
    return PublishedModel(config, source, 2048)


def _neox(layers: int, width: int, heads: int, vocabulary: int) -> PublishedModel:
    """Configure a GPT-NeoX: a GPT with rotary positions and an untied head.

    The original rotates only a quarter of each head and runs its branches in parallel, for the same FLOPs and bytes.
    """
    gpt = _gpt(NEOX, layers, width, heads, vocabulary, tied=False)
    return replace(gpt, config=replace(gpt.config, positions="rotary"))


def _maxtext(width: int, layers: int, heads: int, hidden: int) -> PublishedModel:
    config = TransformerConfig(32_768, width, layers, heads, heads, 256, hidden, gated=False, activation="relu")
    return PublishedModel(config, MAXTEXT, 2048)


MODELS: Mapping[str, PublishedModel] = {
    "tiny": PublishedModel(TransformerConfig(256, 128, 4, 8, 4, 16, 512, dtype="float32"), OURS, 128, 16, 1e-2),
    "small": PublishedModel(TransformerConfig(256, 384, 6, 8, 4, 48, 1024, dtype="float32"), OURS, 256, 32, 3e-3),
    "100m": PublishedModel(TransformerConfig(32_768, 1024, 8, 16, 8, 64, 2048, tied=True), OURS, 1024, 64, 1e-3),
    "llama2-7b": _llama(LLAMA_2, 32_000, 4096, 32, (32, 32), 11_008, 4096, base=10_000.0),
    "llama2-13b": _llama(LLAMA_2, 32_000, 5120, 40, (40, 40), 13_824, 4096, base=10_000.0),
    "llama2-70b": _llama(LLAMA_2, 32_000, 8192, 80, (64, 8), 28_672, 4096, base=10_000.0),
    "llama3-8b": _llama(LLAMA_3, 128_256, 4096, 32, (32, 8), 14_336, 4096),
    "llama3-70b": _llama(LLAMA_3, 128_256, 8192, 80, (64, 8), 28_672, 4096),
    "llama3-405b": _llama(LLAMA_3, 128_256, 16_384, 126, (128, 8), 53_248, 4096),
    "llama3.2-1b": _llama(LLAMA_32, 128_256, 2048, 16, (32, 8), 8192, 4096, tied=True),
    "llama3.2-3b": _llama(LLAMA_32, 128_256, 3072, 28, (24, 8), 8192, 4096, tied=True),
    "nanotron-1b": _llama(NANOTRON, 50_257, 2048, 24, (32, 32), 4096, 4096, tied=True, base=10_000.0),
    "mpt-125m": _gpt(MPT, 12, 768, 12, 50_368),
    "mpt-350m": _gpt(MPT, 24, 1024, 16, 50_368),
    "mpt-760m": _gpt(MPT, 24, 1536, 12, 50_368),
    "mpt-1b": _gpt(MPT, 24, 2048, 16, 50_368),
    "mpt-3b": _gpt(MPT, 32, 2560, 20, 50_368),
    "mpt-7b": _gpt(MPT, 32, 4096, 32, 50_368),
    "mpt-13b": _gpt(MPT, 40, 5120, 40, 50_368),
    "mpt-30b": _gpt(MPT, 48, 7168, 56, 50_368),
    "mpt-70b": _gpt(MPT, 80, 8192, 64, 50_368),
    "gpt3-175b": _gpt(GPT_3, 96, 12_288, 96),
    "megatron-1.7b": _gpt(MEGATRON, 24, 2304, 24),
    "megatron-3.6b": _gpt(MEGATRON, 30, 3072, 32),
    "megatron-7.5b": _gpt(MEGATRON, 36, 4096, 32),
    "megatron-18b": _gpt(MEGATRON, 40, 6144, 48),
    "megatron-22b": _gpt(MEGATRON_SP, 48, 6144, 64),
    "megatron-39b": _gpt(MEGATRON, 48, 8192, 64),
    "megatron-76b": _gpt(MEGATRON, 60, 10_240, 80),
    "megatron-145b": _gpt(MEGATRON, 80, 12_288, 96),
    "megatron-310b": _gpt(MEGATRON, 96, 16_384, 128),
    "megatron-530b": _gpt(MEGATRON, 105, 20_480, 128),
    "megatron-1t": _gpt(MEGATRON, 128, 25_600, 160),
    "maxtext-16b": _maxtext(5120, 32, 32, 32_768),
    "maxtext-22b": _maxtext(6144, 48, 24, 24_576),
    "maxtext-32b": _maxtext(10_240, 32, 32, 32_768),
    "maxtext-52b": _maxtext(12_288, 32, 32, 49_152),
    "maxtext-64b": _maxtext(10_240, 64, 32, 32_768),
    "maxtext-128b": _maxtext(10_240, 64, 64, 65_536),
    "gpt-neox-20b": _neox(44, 6144, 64, 50_432),
}
"""From a million parameters to a trillion.

The two smallest read bytes. The others have their original vocabularies, so that embedding and head have realistic
memory and traffic. Megatron's vocabulary is 51,200, padded from GPT-2's 50,257, and is used for GPT-3 as well.
"""
