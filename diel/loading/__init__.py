"""Loading of modules: their functions, options, environment, and the context of a rank."""
