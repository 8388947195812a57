"""Start many processes, watch them, end them together; and, inside each, join the others."""
