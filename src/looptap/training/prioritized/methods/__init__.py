"""The methods of prioritized gradient descent: what is drawn."""
