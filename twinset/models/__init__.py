"""Base models: where they come from, and the form in which they are trained."""
