"""What is handed over: the twin, its card and its ledger. Also the check of them."""
