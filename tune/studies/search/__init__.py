"""What a sweep tries next."""
