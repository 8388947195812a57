"""Programs that are too big to compute here, judged by a smaller one of the same structure."""
