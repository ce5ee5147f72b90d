"""Tests, by tier: unit, contract, integration, acceptance, chaos, typing."""
