"""`twinset demo`: a twin made on this machine, and what it is worth."""
