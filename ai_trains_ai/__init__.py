"""Nested reinforcement learning: an agent learns to write training jobs by running them."""

__version__ = "0.1.0"
