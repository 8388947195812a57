"""The text of a compiled program as a JAX function: what each operation of XLA computes."""
