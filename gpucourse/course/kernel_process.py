"""One notebook in one process of its own: python -m gpucourse.course.kernel_process JOB, JOB being JSON.

Exits 0 when every cell ran, 1 when a cell failed, 3 when the kernel died. papermill saves the notebook before and
after each cell, so what was reached can be read from the file at any time, also after this process was killed.
"""

import json
import sys

import papermill
from nbclient.exceptions import DeadKernelError

from gpucourse.course.executing import DIED, DONE, FAILED


def main(source: str, target: str, parameters: dict, cwd: str) -> int:
    try:
        # iopub_timeout: the default of 4 s fails on a machine that is busy.
        # coalesce_streams: what a cell prints is one output, however slowly it prints.
        papermill.execute_notebook(source, target, parameters=parameters, kernel_name="python3", cwd=cwd,
                                   progress_bar=False, iopub_timeout=60, coalesce_streams=True)
    except papermill.PapermillExecutionError:
        return FAILED
    except DeadKernelError:
        return DIED
    return DONE


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
