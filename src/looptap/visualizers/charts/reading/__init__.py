"""What names, texts and numbers say about a value: labels and scales."""
