"""Learning rules: how kernels change with the spikes at both ends."""
