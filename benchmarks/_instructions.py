"""Counts the vector instructions that all pairs of a step take in machine code, and measures the processor's clock.

A static count, without counters of the hardware: of the loop over the vectors of a row in which no neuron spiked, in a
step that leaves out no pair, as LLVM compiled it. What happens once a row, and all that is not pairs, is left out.
"""

import ctypes
import re
import time

import jax

from outlay.brain.fused import jax_machine_code
from outlay.brain.fused.deferred_neuron import DeferredNeuron
from outlay.brain.fused.row_code import LANES
from outlay.brain.fused.row_equations import NotCompiled

CYCLES = 400_000_000
CHAIN = """
define i64 @chain(i64 %last) {
start:
  br label %body
body:
  %i = phi i64 [0, %start], [%next, %body]
  %x = phi i64 [%last, %start], [%mixed, %body]
  %sum = add i64 %x, %last
  %mixed = xor i64 %sum, %i
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %last
  br i1 %more, label %body, label %end
end:
  ret i64 %mixed
}
"""
"""A sum that needs the one before, and is mixed so that no compiler shortens it: two cycles a turn."""


def count_instructions(brain):
    """Return the number of vector instructions for all pairs; None without machine code, or where it is not x86's."""
    states, total = jax.eval_shape(brain.init, jax.random.key(0)), 0
    for name, module in brain.modules.items():
        if hasattr(module, "synapses"):
            pairs = DeferredNeuron(brain, name, module, "fast-cpu").pairs(states[name])
            try:
                of_a_vector = count_of_a_vector(pairs)
            except NotCompiled:
                return None
            if of_a_vector is None:
                return None
            units, num_inputs = states[name]["synapses"]["kernel"].shape
            total += units * -(-num_inputs // LANES) * of_a_vector
    return round(total)


def count_of_a_vector(pairs):
    """Return the number of vector instructions for one vector of pairs, without those that only load or store."""
    machine = jax_machine_code.target_machine()
    machine.set_asm_verbosity(True)  # it tells which block is which
    (module,) = jax_machine_code._compiled[pairs.function.name]._modules
    name = "quiet_body" if pairs.quiet else "first_body"
    block = re.search(rf"^\.LBB\S+:\s+# %{name}$\n(.*?)^\s+j\w+\s", machine.emit_assembly(module), re.M | re.S)
    if block is None:
        return None
    instructions = [line.split("#")[0].strip() for line in block[1].splitlines()]
    num = sum(line[:1] in ("v", "k") and not re.match(r"vmov[^{]*\(", line) for line in instructions)
    # How many pairs a turn of the loop is for: LLVM may have unrolled it.
    (step,) = [int(added) for added in re.findall(r"^addq \$(\d+), %\w+$", _one_spaced(instructions), re.M)]
    return num * LANES / step


def _one_spaced(instructions):
    return "\n".join(" ".join(line.split()) for line in instructions)


def cycles_a_second():
    """Measure the processor's clock by a chain of operations that each take a cycle."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(CHAIN), jax_machine_code.target_machine())
    engine.finalize_object()
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("chain"))
    timings = []
    for _ in range(5):
        start = time.perf_counter()
        chain(CYCLES // 2)
        timings.append(time.perf_counter() - start)
    return CYCLES / min(timings)
