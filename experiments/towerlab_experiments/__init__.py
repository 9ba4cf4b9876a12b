"""The experiments of the book: one module for each, whose RECIPES the pipeline runs."""
