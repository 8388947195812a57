"""Products in 8 bits: which products read a parameter, and how their operands are rounded."""
