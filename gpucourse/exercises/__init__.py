"""Exercises: guess, check, hint, solution, and the form of a question.

A bank file (bank/lesson_NN.py) lists a lesson's exercises as data (kinds.py); judging.py looks at an answer and only
makes marks; view.py puts them into words; progress.py keeps them.
"""

from gpucourse.exercises.checking import check
from gpucourse.exercises.form import question
from gpucourse.exercises.guessing import guess
from gpucourse.exercises.hints import hint
from gpucourse.exercises.solutions import solution

__all__ = ["check", "guess", "hint", "question", "solution"]
