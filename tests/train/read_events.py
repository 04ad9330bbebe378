"""Prints what TensorBoard's own reader finds in a folder's event files: TAG STEP VALUE a line."""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

reader = EventAccumulator(sys.argv[1])
reader.Reload()
for tag in sorted(reader.Tags()["scalars"]):
    for event in reader.Scalars(tag):
        print(tag, event.step, repr(float(event.value)))
