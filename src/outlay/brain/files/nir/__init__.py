"""Brains to and from NIR, the Neuromorphic Intermediate Representation, for the parts that both know."""
