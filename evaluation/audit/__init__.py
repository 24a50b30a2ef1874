"""Attacks on twinset's own claims: each measures a lower bound of what the ledger bounds above."""
