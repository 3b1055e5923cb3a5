"""Callbacks for frameworks, which know their steps themselves; each module needs its framework alone."""

from __future__ import annotations
