"""The random samples of the classifiers."""

import jax


def samples(num=128, inputs=784, classes=10):
    """Draw inputs and labels, with the random numbers of JAX before it could draw them in parts."""
    with jax.threefry_partitionable(False):
        _, for_inputs, for_labels = jax.random.split(jax.random.PRNGKey(42), 3)
        return {
            "inputs": jax.random.normal(for_inputs, (num, inputs)),
            "labels": jax.random.randint(for_labels, (num,), 0, classes),
        }
