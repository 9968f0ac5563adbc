"""What a frozen encoder's features are worth: kNN, linear probe."""
