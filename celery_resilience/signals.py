"""Signals for user code, each sent once per fact, in the process where it became one.

Connect to them as to Celery's own; what a receiver raises is logged and changes nothing.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

task_parked = Signal(name="task_parked", providing_args=["task_id", "waits_for", "delay"])
"""A message was set aside without an attempt. Sender: the task's name."""

task_dead_lettered = Signal(name="task_dead_lettered", providing_args=["letter"])
"""A letter was stored: no attempt follows. Sender: the task's name, None where the message names none."""

breaker_changed = Signal(name="breaker_changed", providing_args=["transition"])
"""A breaker has changed its state. Sender: the breaker's name."""
