"""A rank's output as it comes: whole lines, each with its rank, capped where there is no end to them."""

import codecs

MOST_LINES, MOST_CHARACTERS = 1000, 100_000  # of one rank
LONGEST = 2000  # characters of a line
NOISE = "[Gloo] Rank "  # what gloo prints each time a group is made


class Relay:
    """Takes a rank's bytes, prints its lines. last: the lines printed last, oldest first."""

    def __init__(self, rank: int):
        self.rank, self.last = rank, []
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._open = ""  # a line that has not ended yet
        self._lines = self._characters = self._dropped = 0

    def feed(self, data: bytes) -> None:
        *lines, self._open = (self._open + self._decode(data)).split("\n")
        self._open = self._open[-LONGEST:]  # an endless line must not fill the memory
        for line in lines:
            self._line(line)

    def end(self) -> None:
        """The rank has ended: print what it left without a newline, and how much was not shown."""
        if self._open:
            self._line(self._open)
            self._open = ""
        if self._dropped:
            print(f"[rank {self.rank}] … {self._dropped:,} more lines are not shown", flush=True)
            self._dropped = 0

    def _line(self, text: str) -> None:
        text = text.rstrip("\r").rpartition("\r")[2][:LONGEST]  # of a progress bar the last state
        if text.startswith(NOISE):
            return
        if text.strip():
            self.last = [*self.last[-2:], text]
        if self._lines >= MOST_LINES or self._characters >= MOST_CHARACTERS:
            self._dropped += 1
            return
        self._lines += 1
        self._characters += len(text)
        print(f"[rank {self.rank}] {text}", flush=True)
