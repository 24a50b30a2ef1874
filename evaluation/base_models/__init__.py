"""How well base models read text that they never saw, and the twins they make."""
