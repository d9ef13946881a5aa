"""How the marginal score grad_v log p(v) and its theta-gradient are had."""
