"""The target distribution of a node: processors, position-keyed noise, stop conditions."""
