"""What a sweep has given: tables, figures and files."""
