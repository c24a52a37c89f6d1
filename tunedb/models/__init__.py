"""Cost models, trained on stored features and evaluated on held-out workloads."""
