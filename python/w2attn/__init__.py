"""The W2 attention write-up's import names, on weft."""
