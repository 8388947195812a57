"""Check whether a program computes what one device computes."""
