"""Noise policies side by side, each trained and scored with several seeds."""
