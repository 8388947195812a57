"""Step graphs: parts that read each other's earlier outputs, run in one loop, and split by rows."""
