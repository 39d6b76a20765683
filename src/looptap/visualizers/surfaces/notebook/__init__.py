"""Charts, controls and dashboards in a notebook, live while a cell runs."""
