"""From a module's entry in the workflow file to its code running on a rank."""
