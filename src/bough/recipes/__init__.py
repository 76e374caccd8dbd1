"""Settings that reproduce the systems Bough began from: `bough VERB --config VERB-….yaml`."""
