"""What a step means as its user wrote it: on one device, and without anything that Outlay makes of it."""
