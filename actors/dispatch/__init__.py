"""The actor pool and its queue."""
