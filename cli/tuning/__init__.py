"""Commands that run TVM: tune, apply, revalidate."""
