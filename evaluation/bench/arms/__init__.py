"""The page of all arms: what a twin is worth beside the base model, a teacher and real rows."""
