"""Prove forty programs as compiled for hardware that is not here: every recipe, layout and mode, in pairs.

    python benchmarks/compiled_proofs.py                    # forty for h100:1x8, ten of them for tpu-v5e, v5p and v6e
    python benchmarks/compiled_proofs.py --only lora --target tpu-v6e:2x4

Prints a row as each is proved, then how many answers there were of each kind and all unknown operations. It fails where
an answer is not "the same". Each program is the smallest of its recipe that has all its operations; a Brain has none
that is compiled for a target yet, and is proved on simulated devices.
"""

from __future__ import annotations

import argparse
import collections
import os
import time
import traceback
from dataclasses import dataclass

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import outlay
from outlay.core.error_types import OutlayError
from outlay.recipes.find import find_recipe
from outlay.recipes.prepare import prepare

GPUS = "h100:1x8"
TPUS = ("tpu-v5e:2x4", "tpu-v5p:2x2x2", "tpu-v6e:2x4")
STEPS = 2
LM = ("--sequence", "64", "--width", "64", "--heads", "4", "--layers", "2", "--hidden", "128", "--batch", "16")
LORA = ("--sequence", "64", "--batch", "16", "--rank", "2")
TWICE = ("--accumulate", "2")


@dataclass(frozen=True)
class Case:
    """A program: a recipe with its options, a layout and a mode."""

    recipe: str
    layout: str
    mode: str = "auto"
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        extra = " ".join(word for word in self.words if word in ("--accumulate", "--int8", "--tied", "full"))
        return " ".join(filter(None, (self.recipe, self.layout, self.mode, extra)))


CASES = (
    *(Case("digits", layout) for layout in ("dp", "replicated", "zero1", "zero2", "fsdp", "fsdp+tp")),
    *(Case("digits", layout, "manual") for layout in ("dp", "zero1", "zero2", "fsdp")),
    *(Case("lm", layout, "auto", LM) for layout in ("dp", "zero1", "fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+tp+sp")),
    *(Case("lm", layout, "manual", LM) for layout in ("dp", "zero1", "fsdp")),
    *(Case("lm", layout, "auto", (*LM, *TWICE)) for layout in ("dp", "fsdp", "fsdp+tp")),
    Case("lm", "dp", "manual", (*LM, *TWICE)),
    Case("lm", "fsdp", "auto", (*LM, "--tied", "--remat", "full")),
    *(Case("resnet", layout, "auto", ("--width", "8")) for layout in ("dp", "replicated", "zero1", "zero2", "fsdp")),
    *(Case("gan", layout, "auto", ("--width", "32")) for layout in ("dp", "replicated", "zero1", "zero2", "fsdp")),
    *(Case("gan", layout, "manual", ("--width", "32")) for layout in ("dp", "fsdp")),
    *(Case("lora", layout, "auto", LORA) for layout in ("fsdp", "dp", "tp")),
)
OF_TPUS = (
    *(Case("digits", layout) for layout in ("dp", "fsdp+tp")),
    Case("digits", "fsdp", "manual"),
    *(Case("lm", layout, "auto", LM) for layout in ("dp", "fsdp", "fsdp+tp+sp")),
    Case("lm", "dp", "auto", (*LM, *TWICE)),
    Case("resnet", "fsdp", "auto", ("--width", "8")),
    Case("gan", "zero1", "auto", ("--width", "32")),
    Case("lora", "tp", "auto", LORA),
)


def prove(case: Case, target: str) -> tuple[str, str]:
    """Return the answer for a program as compiled for a target, and its reasons."""
    recipe = find_recipe(case.recipe, case.words)
    try:
        program = prepare(recipe, layout=case.layout, mode=case.mode, target=target).program
        proof = outlay.verify(program, STEPS, batches=recipe.data, progress=lambda stage: None)
    except OutlayError as error:
        return "refused", str(error)
    words = proof.wrong[0].in_words if proof.wrong else " | ".join(proof.reasons)
    return proof.verdict, words


def main() -> int:
    """Prove the programs that were asked for, and return how many are not the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name holds this")
    parser.add_argument("--target", default=None, help="of one target alone")
    parser.add_argument("--from", dest="first", type=int, default=0, help="of the list from here on")
    arguments = parser.parse_args()
    asked = [(case, GPUS) for case in CASES]
    asked += [(case, TPUS[number % len(TPUS)]) for number, case in enumerate(OF_TPUS)]
    asked = [(case, arguments.target) for case in CASES] if arguments.target else asked
    asked = [(case, target) for case, target in asked if arguments.only in str(case)][arguments.first :]
    answers: collections.Counter[str] = collections.Counter()
    print(f"{'program':<34}{'target':<16}{'answer':<12}{'seconds':>8}  reasons")
    for case, target in asked:
        start = time.perf_counter()
        try:
            answer, why = prove(case, target)
        except Exception:  # a program that stops the judge is a row, and the others go on
            answer, why = "stopped", traceback.format_exc().splitlines()[-1]
        answers[answer] += 1
        why = " ".join(why.split())
        print(f"{case!s:<34}{target:<16}{answer:<12}{time.perf_counter() - start:>8.1f}  {why[:400]}", flush=True)
    print(", ".join(f"{number} {answer}" for answer, number in answers.most_common()))
    return sum(answers.values()) - answers["same"]


if __name__ == "__main__":
    raise SystemExit(main())
