"""Running the trials of a sweep."""
