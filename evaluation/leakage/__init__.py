"""What a twin and its model give away of the private rows, measured by attacking them."""
