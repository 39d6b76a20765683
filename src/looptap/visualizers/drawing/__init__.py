"""Drawing a `Picture` with matplotlib, with plotly and as text."""
