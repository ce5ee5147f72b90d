"""The seams to kombu: the only place that knows how a message looks on the broker."""
