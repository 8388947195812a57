"""Optimized HLO text, read into values: what the compiler decided, for every version and backend. Pure."""
