"""Commands about other tools' logs: import, export, quarantine."""
