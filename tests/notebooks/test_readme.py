"""The README's lesson table says what the lessons' own first cells say, and no more."""

import re

from gpucourse.course.checkout import here
from gpucourse.course.lessons import lessons


def test_the_lesson_table_agrees_with_the_lessons():
    expected = [f"| [{lesson.number} · {lesson.title}](notebooks/{lesson.name}.ipynb) | {lesson.sentence} | "
                f"{', '.join(lesson.hardware)} | {lesson.minutes} |" for lesson in lessons(here())]
    readme = (here().root / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d\d · .*$", readme, flags=re.MULTILINE) == expected
