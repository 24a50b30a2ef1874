"""The private training loop, and its state for resuming."""
