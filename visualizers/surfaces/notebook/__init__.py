"""Charts, controls and dashboards in a notebook: live while another cell runs, where the kernel can do that."""
