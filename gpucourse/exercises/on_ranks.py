"""A learner's function on real ranks, for the checks of distributed exercises."""

from gpucourse.exercises.results import Wrong

LONGEST = 200  # characters of what a rank raised: some of torch's own messages are a page


def on_ranks(function, n: int, *args, timeout: float = 20, link: str | None = None, env: dict[str, str] | None = None):
    """`function` on n real ranks; a failure there is the answer's, in one line."""
    from gpucourse import ranks
    from gpucourse.ranks.running import warm_up

    warm_up()
    try:
        return ranks.run(function, n, *args, timeout=timeout, link=link, env=env)
    except ranks.RankError as error:
        first, *lines = str(error).splitlines()
        more = "; ".join(" ".join(line.split()) for line in lines[:5])
        raise Wrong(f"on {n} ranks: {first[:LONGEST]}{' …' * (len(first) > LONGEST)}", more[:2 * LONGEST]) from None
