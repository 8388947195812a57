"""Start the processes of a job on this machine, watch them, show what they write, and end them together."""
