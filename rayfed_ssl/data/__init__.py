"""Datasets, the image store, partitions, public data, augmentation and shards."""
