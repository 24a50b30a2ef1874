"""Attacks on twinset's own claims. Each measures a lower bound for what the ledger bounds above."""
