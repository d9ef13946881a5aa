"""What all parts stand on: modules as functions, differentiation, seeds, and the fast paths through torch."""
