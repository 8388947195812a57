"""The passes over pairs of a Brain as machine code for this processor, made when they are traced: `fast-cpu`."""
