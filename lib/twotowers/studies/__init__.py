"""One module a chapter: studies, each of which computes one saved table. Torch is loaded only when one must compute."""
