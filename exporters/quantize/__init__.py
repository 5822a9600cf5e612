"""Files in other precisions than fp32, one way of making them per file, chosen by measurement."""
