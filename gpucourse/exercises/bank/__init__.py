"""The exercises of each lesson, as data: one file a lesson."""
