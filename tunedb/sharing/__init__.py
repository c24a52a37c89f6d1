"""What databases tell each other (docs/sharing.md)."""
