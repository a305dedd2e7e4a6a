"""How full the channels are, as lines of a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from flowengine.runtime.events import ChannelStatus, Status

BAR = 10
SHOWN = 6


def channel_table(status: Status, *, shown: int = SHOWN) -> Table:
    """The fullest channels: from, to, a bar, rows of how many."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("channel", no_wrap=True, overflow="ellipsis", max_width=40)
    table.add_column("filled", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    channels = sorted(status.channels, key=lambda channel: -filled(channel))
    for channel in channels[:shown]:
        share = filled(channel)
        bar = Text("█" * round(share * BAR), style="magenta" if share > 0.9 else "cyan")
        bar.append("░" * (BAR - round(share * BAR)), style="dim")
        name = f"{channel.producer} > {channel.consumer}"
        table.add_row(name, bar, f"{channel.items}/{channel.bound_items}")
    if len(channels) > shown:
        table.add_row(Text(f"and {len(channels) - shown} more, less full", style="dim"), "", "")
    return table


def filled(channel: ChannelStatus) -> float:
    """The part of the bound in use, by rows or by bytes, whichever is more: 0 to 1."""
    by_items = channel.items / channel.bound_items if channel.bound_items else 0.0
    by_bytes = channel.num_bytes / channel.bound_bytes if channel.bound_bytes else 0.0
    return min(1.0, max(by_items, by_bytes))
