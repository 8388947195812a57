"""Proofs of compiled programs that compute nothing: how each value is spread over the devices, from the text alone."""
