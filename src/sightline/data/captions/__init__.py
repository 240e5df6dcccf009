"""Images with captions: data sets, their formats, and drawn scenes."""
