"""What graphs mean: one walk, many readings (numbers, field elements, abstract terms, cost)."""
