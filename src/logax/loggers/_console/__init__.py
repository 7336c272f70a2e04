"""The parts of `ConsoleLogger`: what is known of each key, and how it is shown."""
