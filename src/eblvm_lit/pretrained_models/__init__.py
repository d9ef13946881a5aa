"""Models trained by this project, small enough to be part of it. docs/pretrained.md says how they were trained."""
