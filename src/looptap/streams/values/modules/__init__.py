"""The modules of a model: their names, and what a query reads of them."""
