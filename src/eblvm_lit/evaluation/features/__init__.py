"""Networks that turn images into features, and what is known of a set of images by them."""
