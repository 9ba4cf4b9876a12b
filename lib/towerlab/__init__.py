"""Prompts, models and measurements, which make the files that `twotowers` analyses.

OpenMP reads `OMP_WAIT_POLICY` when torch is first imported. By default its threads spin while they
wait for one another, and on a busy machine they take the time of the threads that work.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
