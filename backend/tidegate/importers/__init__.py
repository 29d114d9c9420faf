"""Other formats, and recordings of our own, into runs of the store."""
