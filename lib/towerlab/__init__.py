"""The laboratory: prompts, models and measurements, for the files that `twotowers` analyses."""
