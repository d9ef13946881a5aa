"""Drawing many images from a trained model."""
