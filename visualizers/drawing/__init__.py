"""Drawing a `Picture` with matplotlib, with plotly and as text: three libraries, one description."""
