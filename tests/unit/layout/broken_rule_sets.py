"""Ten broken rule sets and what must be said of each. Tests run them; the page of caught mistakes is made of them."""

from dataclasses import dataclass, field
from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay

MESH = abstract(data=4, model=2)
PARAMS = {
    "encoder": {"kernel": shape(784, 512), "bias": shape(512)},
    "decoder": {"kernel": shape(512, 10), "bias": shape(10)},
}
MOMENTS = jax.eval_shape(optax.sgd(1e-3, momentum=0.9).init, PARAMS)
STATE = {"opt_state": MOMENTS, "params": PARAMS}
BATCH = {"image": shape(64, 784), "label": shape(64, dtype="int32")}


@dataclass(frozen=True)
class BrokenRuleSet:
    """One mistake.

    Attributes:
        name: the mistake in a few words.
        written: the layout as the user wrote it: a Python expression.
        kind: the kind of problem it must be called.
        fix: a phrase that the fix must hold: the edit to make.
        num_problems: how many problems of that kind there are.
        state: the tree it is for.
    """

    name: str
    written: str
    kind: str
    fix: str
    num_problems: int = 1
    state: Any = field(default_factory=lambda: STATE)

    def error(self) -> outlay.errors.LayoutError:
        """What Outlay raises for it."""
        layout = eval(self.written, {"outlay": outlay, "P": P})
        try:
            plan = layout.plan(self.state, MESH, batch=BATCH)
        except outlay.errors.LayoutError as error:
            return error
        raise AssertionError(f"the broken rule set {self.name!r} was accepted:\n{plan}")


BROKEN_RULE_SETS = [
    BrokenRuleSet(
        "a typo in a path",
        'outlay.Layout([("params.encoder.kernal", P(None, "model"))]) + outlay.data_parallel()',
        "unused rule",
        "did you mean 'params.encoder.kernel'",
    ),
    BrokenRuleSet(
        "an unanchored pattern",
        'outlay.Layout([("kernel", P(None, "model"))]) + outlay.data_parallel()',
        "unused rule",
        'patterns are anchored at both ends; write "**.kernel"',
    ),
    BrokenRuleSet(
        "a layer that was renamed",
        'outlay.Layout([("params.head.kernel", P("model", None))]) + outlay.data_parallel()',
        "unused rule",
        "or 'params.decoder.kernel'?",
    ),
    BrokenRuleSet(
        "an axis that the mesh lacks",
        'outlay.Layout([("params.**.kernel", P(None, "modle"))]) + outlay.data_parallel()',
        "unknown axis",
        "did you mean 'model'?",
    ),
    BrokenRuleSet(
        "too many dims",
        'outlay.Layout([("params.**", P(None, "model"))]) + outlay.data_parallel()',
        "too many dims",
        "write a spec of at most 1 entry",
        num_problems=2,
    ),
    BrokenRuleSet(
        "a dim that does not divide",
        'outlay.Layout([("params.**.kernel", P(None, "data"))]) + outlay.data_parallel()',
        "indivisible dim",
        'split dim 0 (size 512) with otherwise="another_dim"',
    ),
    BrokenRuleSet(
        "a rule in the shadow of another",
        'outlay.Layout([("params.**.kernel", P(None, "model")), ("params.decoder.kernel", P("model", None))])'
        " + outlay.data_parallel()",
        "shadowed rule",
        "move it before",
    ),
    BrokenRuleSet(
        "a rule written twice",
        'outlay.Layout([("params.**.kernel", P(None, "model"))]) + outlay.data_parallel() + outlay.data_parallel()',
        "duplicate rule",
        "delete one of the two",
    ),
    BrokenRuleSet(
        "no rule for the optimizer",
        'outlay.Layout([("params.**", P("model"))]) + outlay.data_parallel()',
        "copy left whole",
        'add ("slots.**", outlay.layout.follow("params"))',
        state={"slots": MOMENTS, "params": PARAMS},
    ),
    BrokenRuleSet(
        "no rule for the batch",
        'outlay.Layout([("params.**", P("model"))])',
        "uncovered leaf",
        "add outlay.data_parallel() to split the batch",
        num_problems=2,
    ),
]
