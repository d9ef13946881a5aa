"""Folders of images as people have them: their splits, classes, labels, and what their files contain."""
