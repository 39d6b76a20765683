"""Links through the stdin and stdout of any command."""
