"""Pictures of the dashboard on a real run: `make screenshots` makes them anew."""
