"""Studies: designs trained side by side under one budget, with seeds, and what can be said from them."""
