"""The run record: manifest, metric rows and the record itself."""
