"""The training of the included model: its text, its training, its card.

`python -m training.train mini-gpt2` trains it, from the repository's root. `twotowers` never
imports from here.

- `tokenizer`, `text`: the text of the training, drawn anew at every update
- `prompts`, `card`: the prompts of a test, and the measured numbers of the model's card
- `word_similarity`: similarities of words, which the model's training does not see
- `configuration`, `trainer`: the parts of a model, and all steps from random weights to a finished
  model
"""
