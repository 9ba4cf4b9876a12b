"""Prompts, models and measurements, which make the files that `twotowers` analyses."""
