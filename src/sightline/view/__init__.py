"""Self-contained HTML pages and matplotlib figures of attention weights, model parameters and explanations."""
