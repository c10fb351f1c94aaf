"""qdhuac: many different, good policies for one robot, in few simulator steps."""

__version__ = "0.1.0"
