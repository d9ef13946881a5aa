"""Joint energies E(v,h;theta), with free energy and conditionals where they are tractable."""
