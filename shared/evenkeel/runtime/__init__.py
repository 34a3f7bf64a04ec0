"""Code between AWS Lambda and the services: settings, wiring, entry points, telemetry and the API."""
