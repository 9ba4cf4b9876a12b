"""The laboratory: prompts, models and measurements. It writes the files that `twotowers` analyses, and needs torch."""
