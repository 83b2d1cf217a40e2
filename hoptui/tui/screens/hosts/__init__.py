"""The hosts screen: each host, its link and its runs."""
