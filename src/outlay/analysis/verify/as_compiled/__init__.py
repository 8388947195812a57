"""Proofs of programs as compiled for hardware that need not be there."""
