"""Guards: note what a query could change, and restore or report it afterwards."""
