"""Other toolkits beside twinset: one table, one ε, the same rows out and the same students."""
