"""Values held column by column, in place of lists of scalars and rows."""
