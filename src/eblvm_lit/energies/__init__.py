"""Joint energies E(v, h; theta), with free energies and conditionals where they are tractable."""
