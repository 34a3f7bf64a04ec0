"""Read models of the API, in a package for each group of pages; beside them, the parts that several pages share."""
