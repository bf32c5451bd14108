"""What leaves a log for others: reports, bundles that prove themselves, renderings for other systems."""
