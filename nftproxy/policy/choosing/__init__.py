"""Which endpoints serve a Service port, and in which slots."""
