"""What somebody else may have written: its files, tables and links, whose it is, and the code that it names."""
