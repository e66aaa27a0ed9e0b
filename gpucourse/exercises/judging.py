"""Is the answer right? An answer that is not blank goes in, its marks come out. Nothing is shown or kept here."""

import inspect
from typing import Any

from gpucourse.evidence import number
from gpucourse.exercises.answers import blank, function_of, key_of, named_values, number_of
from gpucourse.exercises.kinds import Code, Exercise, Parts, Pick, Quantity, Value
from gpucourse.exercises.results import Mark, Unusable, Wrong

# A right number in another unit is off by one of these.
UNIT_SLIPS = (100, 1000, 1024, 1000**2, 1024**2, 1000**3, 1024**3)

# A misconception is recognised when the answer is this near to it, also where only the exact value is right.
RECOGNISED = 0.01


def judge(exercise: Exercise, answer: Any, given: Any = None) -> tuple[Mark, ...]:
    """One mark for each part. Raises Unusable for an answer that cannot be read, and whatever the bank's own
    functions and the learner's function raise."""
    match exercise:
        case Code():
            return run_code(exercise, function_of(answer))
        case Parts():
            values = named_values(answer, exercise.parts)
            return tuple(mark_part(name, part, values[name], given) for name, part in exercise.parts.items())
        case Quantity():
            return (mark_number(exercise, number_of(answer, exercise.unit), given),)
        case Pick():
            return (mark_pick(exercise, key_of(answer, exercise.options), given),)
    raise TypeError(f"{type(exercise).__name__} is no kind of exercise")


def run_code(exercise: Code, function: Any) -> tuple[Mark, ...]:
    marks = []
    try:
        for mark in exercise.run(function) or ():
            marks.append(mark)  # one by one: what was marked before a Wrong is kept
    except Wrong as wrong:
        marks.append(Mark(wrong.says, False, note=wrong.note))
    return tuple(marks)


def mark_part(name: str, part: Quantity | Pick, answer: Any, given: Any) -> Mark:
    if blank(answer):
        return Mark(name, False, "not attempted")
    what = f"part {name!r}"
    if isinstance(part, Quantity):
        mark = mark_number(part, number_of(answer, part.unit, what), given)
    else:
        mark = mark_pick(part, key_of(answer, part.options, what), given)
    return Mark(name, mark.ok, mark.what, mark.note)


def mark_number(quantity: Quantity, answer: float, given: Any) -> Mark:
    expected = value_of(quantity.expected, given)
    ok = near(answer, expected, quantity.within, quantity.or_within)
    return Mark(f"{number(answer)} {quantity.unit}".rstrip(), ok, note="" if ok else why_wrong(quantity, answer, given))


def why_wrong(quantity: Quantity, answer: float, given: Any) -> str:
    """What was forgotten, when it is one of the exercise's misconceptions; else the unit slip, or the direction."""
    for misconception in quantity.misconceptions:
        wrong = value_of(misconception.answer, given)
        if near(answer, wrong, max(quantity.within, RECOGNISED), quantity.or_within):
            return misconception.says
    expected = value_of(quantity.expected, given)
    slips = [*UNIT_SLIPS, *(1 / slip for slip in UNIT_SLIPS)]
    if expected and quantity.unit and any(near(answer, expected * slip, quantity.within, 0.0) for slip in slips):
        return f"The digits are right, the unit is not: give it in {quantity.unit}."
    size = 10 * abs(expected)
    far = " by more than a factor of 10" if expected and not size / 100 <= abs(answer) <= size else ""
    return f"It is too {'high' if answer > expected else 'low'}{far}."


def mark_pick(pick: Pick, key: str, given: Any) -> Mark:
    right = value_of(pick.right, given)
    if right not in pick.options:
        raise ValueError(f"the right key {right!r} is none of the options")
    return Mark(key, key == right, note="" if key == right else pick.why.get(key, ""))


def near(answer: float, expected: float, within: float, or_within: float) -> bool:
    return abs(answer - expected) <= max(within * abs(expected), or_within)


def value_of(value: Value | str, given: Any) -> Any:
    """A value of the bank: itself, or what its function returns, with `given` when the function takes it."""
    if not callable(value):
        return value
    takes_given = any(p.default is p.empty for p in inspect.signature(value).parameters.values())
    if takes_given and given is None:
        raise Unusable("this exercise is held against what the lesson measured: "
                       "run the cells above and pass it as check(…, given=…)")
    return value(given) if takes_given else value()
