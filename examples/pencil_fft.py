"""A 3-D FFT by pencils: one dim after another is whole on every device, while a 2-axis mesh splits the other two.

    python examples/pencil_fft.py

Each transform runs on a device's own lines, and each transposition of the pencils exchanges blocks between devices
along one mesh axis only. No device ever holds the whole array. In a job of several processes, the same code runs
on the devices of all processes:

    outlay launch -n 2 --devices-per-process 4 -- python examples/pencil_fft.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import outlay

SHAPE = (32, 16, 24)


def fft_along(dim, x, mesh):
    """Transform every line along one dim, on pencils along it."""
    spec = outlay.arrays.pencil(x.shape, mesh, along=dim).spec
    lines = jax.shard_map(lambda piece: jnp.fft.fft(piece, axis=dim), mesh=mesh, in_specs=spec, out_specs=spec)
    return lines(x)


def fft(x, mesh):
    """Transform all three dims. Between two transforms, XLA redistributes the array to the next pencils."""
    for dim in (2, 1, 0):
        x = fft_along(dim, x, mesh)
    return x


def wave(index):
    """Compute any slice of the field; each process makes only its own slices."""
    i, j, k = np.ogrid[index]
    return (np.sin(0.3 * i) * np.cos(0.5 * j + 0.1 * k) + 0.01 * (i * k % 7)).astype(np.complex64)


if outlay.join().num_processes == 1:
    outlay.simulate(8)
mesh = outlay.mesh(a=4, b=2, over={"a": "hosts"})  # `a` may run over several processes
x = outlay.arrays.from_callback(wave, SHAPE, np.complex64, outlay.arrays.pencil(SHAPE, mesh, along=2))
y = jax.jit(fft, static_argnums=1)(x, mesh)

expected = np.fft.fftn(wave(tuple(slice(0, size) for size in SHAPE)))
error = float(np.abs(outlay.arrays.gather(y) - expected).max() / np.abs(expected).max())
if jax.process_index() == 0:
    print(outlay.show(y))
    print(f"largest difference from numpy's FFT, relative: {error:.1e}")
assert error < 1e-5
