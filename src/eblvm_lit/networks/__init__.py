"""Networks without any probability in them."""
