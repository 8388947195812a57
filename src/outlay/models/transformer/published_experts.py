"""Named transformers with mixtures of experts: one that trains on a laptop, and published ones with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlay.models.transformer.expert_config import ExpertConfig
from outlay.models.transformer.published import OURS, PublishedModel

MIXTRAL = "Jiang et al. (2024), arXiv:2401.04088, table 1"
QWEN_3 = "Yang et al. (2025), arXiv:2505.09388, table 2, and the configs of Qwen3-30B-A3B and Qwen3-235B-A22B"
DEEPSEEK_3 = (
    "DeepSeek-AI (2024), arXiv:2412.19437, section 4.2; with experts in all layers, and grouped heads in place of "
    "latent attention"
)


@dataclass(frozen=True)
class PublishedExperts(PublishedModel):
    """A named model with experts.

    Attributes:
        config: its configuration.
    """

    config: ExpertConfig


EXPERT_MODELS: Mapping[str, PublishedExperts] = {
    "tiny": PublishedExperts(
        ExpertConfig(256, 128, 4, 8, 4, 16, 256, dtype="float32", num_experts=8, top_k=2), OURS, 128, 16, 1e-2
    ),
    "mixtral-8x7b": PublishedExperts(
        ExpertConfig(32_000, 4096, 32, 32, 8, 128, 14_336, rotary_base=1e6, num_experts=8, top_k=2), MIXTRAL, 4096
    ),
    "qwen3-30b-a3b": PublishedExperts(
        ExpertConfig(151_936, 2048, 48, 32, 4, 128, 768, rotary_base=1e6, num_experts=128, top_k=8), QWEN_3, 4096
    ),
    "qwen3-235b-a22b": PublishedExperts(
        ExpertConfig(151_936, 4096, 94, 64, 4, 128, 1536, rotary_base=1e6, num_experts=128, top_k=8), QWEN_3, 4096
    ),
    "deepseek-v3-like": PublishedExperts(
        ExpertConfig(
            *(129_280, 7168, 61, 128, 8, 128, 2048),
            num_experts=256, top_k=8, gates="sigmoid", scale=2.5, shared_hidden=2048, balance=1e-4, z=0.0,
        ),
        DEEPSEEK_3, 4096,
    ),
}  # fmt: skip
