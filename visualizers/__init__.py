"""Charts: choosing one from the values of a stream, and drawing it with plotly, matplotlib or text."""
