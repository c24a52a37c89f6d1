"""Commands about whom the database believes: sources, trust, retract."""
