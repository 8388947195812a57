"""What JAX and its companions say when devices, shardings, memory or processes are wrong, and what it means."""
