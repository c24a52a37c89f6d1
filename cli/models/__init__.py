"""Commands about cost models and features: train, evaluate, models, explain, extract, features."""
