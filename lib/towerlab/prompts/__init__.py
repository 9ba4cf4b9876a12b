"""Prompts: their texts, their blocks, their variants, and the positions of their parts."""
