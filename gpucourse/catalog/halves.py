"""What does not go with a backward in halves, as torch.distributed.pipelining 2.13 has it.

The lost gradients are seen on real ranks (tests/ranks/test_staged.py), the rest in dry runs.
"""

from gpucourse.catalog.jobs import Job

SCHEDULES = ("zero-bubble", "zbv", "dualpipe")


def in_halves(job: Job) -> bool:
    return job.layout.pp > 1 and job.layout.schedule in SCHEDULES


def refusal(job: Job) -> str:
    """Why torch cannot train that, in one line; nothing where it can."""
    if not in_halves(job):
        return ""
    schedule, instead = job.layout.schedule, "or take 1f1b or interleaved"
    if job.layout.shard == "zero3" and job.layout.reshard == "always":
        return (f"reshard is always with {schedule}: weights that FSDP gives back between the halves of a backward "
                f"lose their gradient; set reshard to never, {instead}")
    if job.recompute not in ("none", "attention"):
        why = ("selective checkpointing allows one backward, not two halves" if job.recompute.startswith("op") else
               "for each weight of a block its half of the backward would run the whole block again")
        return f"recompute is {job.recompute} with {schedule}: {why}; use none or attention, {instead}"
    if job.chunked_loss:
        return (f"chunked-loss is {job.chunked_loss} with {schedule}: each half of a backward would make its parts "
                f"again, and keep them; leave it out, {instead}")
    return ""
