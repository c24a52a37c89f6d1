"""Cost models: trained from stored features, judged on workloads that they have not seen."""
