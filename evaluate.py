"""Evaluate a checkpoint on the test split: python evaluate.py ckpt=PATH."""

from eblvm_lit.cli.commands import evaluate

if __name__ == "__main__":
    evaluate()  # Hydra's completion in shells serves scripts that contain @hydra.main
