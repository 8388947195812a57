"""What is known of a program whose parts are placed: what each costs, and what they send one another."""
