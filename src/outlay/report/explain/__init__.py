"""Explain a compiled program: communication, memory and work, each with the source line that caused it."""
