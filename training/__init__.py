"""How the model that the book ships was made: its text, its training, its card.

`python -m training.train mini-gpt2`, from the repository's root. `twotowers` never imports from
here.

- tokenizer, text: what is read, drawn anew at every update
- prompts, card: what a model is asked, and the measured numbers of its card
- configuration, trainer: what a model is made of, and the way from random weights to a shipped one
"""
