"""Celery apps that worker processes load; configured by environment variables only."""
