"""What a compiled program moves, holds and computes, and which line of whose code asked for it."""
