"""Drawing of many images from a trained model."""
