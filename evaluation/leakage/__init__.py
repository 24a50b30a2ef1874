"""What a twin and its model reveal of the private rows, measured by attacking them."""
