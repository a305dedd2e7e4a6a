"""What can be seen of a run: its files, its progress, its report, and its graph as a picture."""

from flowengine.observe.json_lines import JsonLines
from flowengine.observe.picture import draw_picture
from flowengine.observe.progress import Progress
from flowengine.observe.record import Recorder
from flowengine.observe.sketch import Sketch, sketch_graph

__all__ = ["JsonLines", "Progress", "Recorder", "Sketch", "draw_picture", "sketch_graph"]
