"""The private training loop, and what it keeps to resume from."""
