"""The machine beside the loop: host and NVIDIA devices."""
