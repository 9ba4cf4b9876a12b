"""The models that the book ships, made from nothing: their text, their training, their cards.

Beside `twotowers`, which never imports from here. Each module imports only from those above it:

- tokenizer, episodes: the text
- measure, choice, card: what a model of words does, which step is shipped
- new_model, trainer: from random weights to a shipped model
- sentence_text, sentence_card, sentence_trainer: the same for the model that reads sentences
- train: the command, `python -m miniatures.train mini-gpt2`
- repeated_tokens, along_training: `python -m miniatures.along_training --seeds 0,1,2 --out FOLDER` measures on the way
"""
