"""One page with the guarantee and all measurements. It computes no score itself."""
