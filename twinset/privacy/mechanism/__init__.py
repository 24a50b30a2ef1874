"""What is random: noise, Poisson batches, label counts."""
