"""Pictures of data, models and learning curves."""
