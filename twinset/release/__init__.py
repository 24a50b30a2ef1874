"""What is handed over: the twin, its card and its ledger; and the check of them."""
