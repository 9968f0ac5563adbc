"""What a step costs and what a machine has: measured, estimated, and refused where it does not fit."""
