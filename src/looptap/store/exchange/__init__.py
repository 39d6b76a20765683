"""Other formats: CSV, Parquet, TensorBoard."""
