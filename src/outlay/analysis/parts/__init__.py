"""What the parts of a placed program cost, compiled and measured, and what they send to one another."""
