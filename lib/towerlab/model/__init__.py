"""Models: loading, proof, capture of one forward pass, interventions, and the vocabulary."""
