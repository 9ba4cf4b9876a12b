"""Measurements of a model: their functions, their recipes, and the pipeline that makes them."""
