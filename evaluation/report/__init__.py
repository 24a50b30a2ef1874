"""One page of what is guaranteed and what was measured. It computes no score itself."""
