"""Search algorithms for dynamic trees: settings, fits, prices, bounds."""
