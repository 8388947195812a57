"""Whether a program computes what one device computes."""
