"""The transcript of a demo run: one readable line for each thing that happened."""

from __future__ import annotations

from collections import Counter
from typing import Any

_GREEN, _YELLOW, _RED, _GREY, _PLAIN = "\033[32m", "\033[33m", "\033[31m", "\033[90m", "\033[0m"
_COLOURS = {"done": _GREEN, "failed": _YELLOW, "gave up": _RED, "started": _GREY}


class Transcript:
    """Prints journal entries and keeps count of them."""

    def __init__(self, *, colour: bool) -> None:
        self.is_ready = False
        self.attempts = 0
        self.ended: Counter[str] = Counter()
        self.final_classes: Counter[str] = Counter()
        self._colour = colour
        self._began: float | None = None
        self._failed_at: dict[tuple[str, int], float] = {}

    def add(self, entry: dict[str, Any]) -> None:
        """Count an entry and print it; first attempts start silently."""
        if entry["event"] == "ready":
            self.is_ready = True
            return
        self._began = entry["at"] if self._began is None else self._began
        self._count(entry)
        text = self._text(entry)
        if text:
            name = f"{entry['task']} {entry['order']}"
            self.say(f"{entry['at'] - self._began:7.2f} s  {name:<11} {text}", entry["event"])

    def say(self, text: str, event: str = "") -> None:
        """Print a line, coloured on a terminal."""
        colour = _COLOURS.get(event) if self._colour else None
        print(f"{colour}{text}{_PLAIN}" if colour else text, flush=True)

    def _count(self, entry: dict[str, Any]) -> None:
        match entry["event"]:
            case "started":
                self.attempts += 1
            case "done" | "gave up":
                self.ended[entry["event"]] += 1
        if entry["event"] == "gave up":
            self.final_classes[entry["failure_class"]] += 1

    def _text(self, entry: dict[str, Any]) -> str:
        attempt, of = entry["attempt"], (entry["task"], entry["order"])
        match entry["event"]:
            case "failed":
                self._failed_at[of] = entry["at"]
                asked = f", the server asked for {entry['retry_after']:g} s" if entry["retry_after"] else ""
                return f"attempt {attempt} failed: {_why(entry)}; again in {entry['delay']:.2f} s{asked}"
            case "started" if of in self._failed_at:
                return f"attempt {attempt} begins {entry['at'] - self._failed_at.pop(of):.2f} s later"
            case "gave up":
                return f"attempt {attempt} failed: {_why(entry)}; no more attempts"
            case "done":
                return f"done at attempt {attempt}"
        return ""


def _why(entry: dict[str, Any]) -> str:
    status = f" {entry['status']}" if entry["status"] else ""
    return f"{entry['failure_class']} ({entry['error']}{status})"
