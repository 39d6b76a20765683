"""The kinds of charts that come with looptap, a module for each family of them."""
