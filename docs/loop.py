"""Draws loop.svg, the picture of a tree rollout: `python docs/loop.py`."""

from __future__ import annotations

from pathlib import Path

INK, SOFT, PANEL = "#1f2933", "#7b8794", "#f5f7fa"
GOOD, BAD, FLAT = "#2f855a", "#c53030", "#a0aec0"
ROLES = (("coder", "#2b6cb0", "adapter A"), ("tester", "#b7791f", "adapter B"))
CANDIDATES = ((1.0, 1.0, True), (0.5, 0.0, False), (0.0, -1.0, False))


def text(x: float, y: float, words: str, size: int = 14, fill: str = INK, more: str = "") -> str:
    """An SVG text element."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" {more}>{words}</text>'


def box(x: float, y: float, width: float, height: float, stroke: str, fill: str = "#fff") -> str:
    """A rounded rectangle."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.6"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    """A curve from left to right with an arrow head."""
    middle = (x1 + x2) / 2
    dash = 'stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" fill="none" '
        f'stroke="{color}" stroke-width="1.8" marker-end="url(#head)" {dash}/>'
    )


def turn(left: float, role: str, color: str, adapter: str) -> list[str]:
    """One decision: the prompt, its K completions with rewards and advantages, the group."""
    parts = [
        box(left, 118, 104, 64, color),
        text(left + 14, 145, role, 16, color, 'font-weight="600"'),
        text(left + 14, 167, "prompt", 13, SOFT),
        box(left + 156, 52, 218, 196, "#cbd2d9", PANEL),
        text(left + 172, 242, "one group: same prompt", 12, SOFT),
    ]
    for index, (reward, advantage, executed) in enumerate(CANDIDATES):
        top = 64 + index * 56
        tone = GOOD if advantage > 0 else BAD if advantage < 0 else FLAT
        parts.append(line(left + 104, 150, left + 166, top + 21, color))
        parts.append(box(left + 172, top, 190, 42, tone if executed else "#cbd2d9"))
        parts.append(text(left + 182, top + 18, f"completion {index + 1}", 13))
        parts.append(text(left + 182, top + 35, f"reward {reward:.1f}", 12, SOFT))
        parts.append(text(left + 258, top + 35, f"advantage {advantage:+.1f}", 12, tone))
    parts.append(line(left + 258, 252, left + 258, 300, color, dashed=True))
    parts.append(box(left + 176, 306, 170, 40, color))
    parts.append(text(left + 190, 331, f"update {adapter}", 14, color, 'font-weight="600"'))
    return parts


def main() -> None:
    """Writes the picture beside this file."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1056 366" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        'role="img" aria-label="One turn of a tree rollout">',
        f'<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" '
        f'orient="auto"><path d="M0,0 L6,3 L0,6 z" fill="{SOFT}"/></marker></defs>',
        '<rect width="1056" height="366" rx="12" fill="#ffffff"/>',
        text(24, 30, "One turn of a tree rollout", 17, INK, 'font-weight="600"'),
        text(
            300,
            30,
            "K completions of one prompt, each scored on its own copy of the environment",
            14,
            SOFT,
        ),
    ]
    for number, (role, color, adapter) in enumerate(ROLES):
        parts += turn(24 + number * 462, role, color, adapter)
    parts.append(line(386, 85, 486, 150, GOOD))
    parts.append(text(404, 48, "executed:", 12, GOOD))
    parts.append(text(404, 64, "the episode", 12, GOOD))
    parts.append(text(404, 80, "continues", 12, GOOD))
    parts.append(line(848, 85, 926, 150, GOOD))
    parts.append(box(928, 118, 106, 64, SOFT))
    parts.append(text(940, 145, "next turn,", 13, SOFT))
    parts.append(text(940, 165, "or success", 13, SOFT))
    parts.append("</svg>")
    Path(__file__).with_name("loop.svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
