"""Costs over time: prices kept up by others, request logs and usage exports, and the report made of them."""
