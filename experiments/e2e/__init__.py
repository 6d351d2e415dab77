"""Published end-to-end measurements against the serving model: rows to error tables."""
