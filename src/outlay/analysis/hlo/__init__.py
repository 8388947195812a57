"""Parse optimized HLO text into values: what the compiler decided, for every version and backend. Pure."""
