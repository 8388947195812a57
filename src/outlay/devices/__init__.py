"""Devices and how they are arranged: simulated devices, `MeshSpec` (pure) and the `jax.sharding.Mesh` built from it."""
