"""Public pre-training: `twinset pretrain`."""
