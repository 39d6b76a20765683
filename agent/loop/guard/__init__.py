"""What a query could change of the loop: noted before it runs, put back or reported after."""
