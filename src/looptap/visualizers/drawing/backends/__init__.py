"""Pictures drawn by matplotlib, by plotly and as text."""
