"""From events to epsilon, and back."""
