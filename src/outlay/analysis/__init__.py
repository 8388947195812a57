"""Facts about compiled programs: what the compiler wrote, its work, its cost on a target, and proofs of equality."""
