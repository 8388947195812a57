"""What costs more than it must, and the edit that mends it."""
