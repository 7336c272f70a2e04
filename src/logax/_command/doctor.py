"""`logax doctor`: what is here, what works, and how to mend what does not."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from logax._command.checks import Check, all_checks
from logax._command.options import add_command
from logax._command.page import safe_lines, write, write_json

_EXAMPLE = """\
  logax doctor
  logax doctor --json"""


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "doctor", "check that logging works here", _EXAMPLE)
    parser.add_argument("--json", action="store_true", help="print an object in JSON")
    return parser


def run(options: Any) -> int:
    """Check everything; 1 if something essential fails."""
    checks = all_checks()
    failed = [check for check in checks if check.status == "fails"]
    if options.json:
        write_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
    else:
        _write(checks, failed)
    return 1 if failed else 0


def _write(checks: list[Check], failed: list[Check]) -> None:
    signs = {"ok": "ok", "missing": "-", "note": "!", "fails": "FAILS"}
    for kind in dict.fromkeys(check.kind for check in checks):
        write(kind)
        own = [check for check in checks if check.kind == kind]
        width = max(len(check.name) for check in own)
        for check in own:
            write(f"  {signs[check.status]:5}  {check.name:{width}}  {_safe(check.found)}")
        write("")
    for check in checks:
        if check.status in ("fails", "note") and check.mend:
            write(f"{check.name}: {_safe(check.mend)}")
    write(_verdict(failed))


def _verdict(failed: list[Check]) -> str:
    if not failed:
        return "Logging works here."
    return f"Logging does not work here: {', '.join(check.name for check in failed)}."


def _safe(text: str) -> str:
    return safe_lines(text, sys.stdout).replace("\n", " ")
