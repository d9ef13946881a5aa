"""Neural networks that map tensors to tensors, without probability distributions."""
