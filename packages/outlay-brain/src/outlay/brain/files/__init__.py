"""Brains in files: Outlay's own TOML, Spark's `.scfg`, and NIR."""
