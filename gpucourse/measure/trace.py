"""Live bytes after every operation: memory over one step as a curve."""

from gpucourse.measure.live_storages import LiveStorages


class Trace(LiveStorages):
    """points: live bytes after each operation. marks: (number of the operation, name) of what `mark` was told."""

    def __init__(self):
        super().__init__()
        self.points: list[int] = []
        self.marks: list[tuple[int, str]] = []

    def mark(self, name: str) -> None:
        self.marks.append((len(self.points), name))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.points.append(self.live)
        return result
