"""Building: emitted sources become the extension."""
