"""What a compiled program does, brought back to leaves of the state and lines of the source."""
