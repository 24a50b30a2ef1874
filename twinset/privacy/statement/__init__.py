"""What may be claimed: the ledger, the guarantee and its words."""
