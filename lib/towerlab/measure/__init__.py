"""Parts that all measurements share: the pipeline, recipes, files and sets of heads."""
