"""What crosses processes: Ray's object store, and client states."""
