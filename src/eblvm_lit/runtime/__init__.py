"""What happens around training: composing, checking, resuming, results."""
