"""What is random: noise, Poisson batches, noisy counts of labels and of tokens."""
