"""What lies on disk or in a bucket: checkpoints, tables, tensor files."""
