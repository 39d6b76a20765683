"""What is installed of looptap: its version, and the compiled part, an option."""
