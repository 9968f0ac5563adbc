"""A run's configuration: schema, sections, recipes and the reference page."""
