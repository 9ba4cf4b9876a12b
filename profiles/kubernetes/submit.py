"""Start one pod that runs Snakemake's script: submit.py CPUS MEMORY_MB GPUS SCRIPT. Prints the job's name."""

import json
import os
import subprocess
import sys
import uuid

cpus, memory, gpus, script = sys.argv[1:]
try:
    image, claim, mount = (os.environ[f"TWOTOWERS_{name}"] for name in ("IMAGE", "CLAIM", "MOUNT"))
except KeyError as missing:
    sys.exit(f"{missing.args[0]} is not set: see profiles/kubernetes/config.yaml")
name = f"twotowers-{uuid.uuid4().hex[:12]}"
size = {"cpu": cpus, "memory": f"{memory}Mi"} | ({"nvidia.com/gpu": gpus} if int(gpus) else {})
given = ("TWOTOWERS_", "OMP_", "MKL_", "HF_", "TOKENIZERS_")  # what the engine and the user say of every job
pod = {
    "restartPolicy": "Never",
    "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}],
    "containers": [
        {
            "name": "job",
            "image": image,
            "command": ["sh", os.path.abspath(script)],
            "workingDir": os.getcwd(),
            "env": [{"name": key, "value": value} for key, value in os.environ.items() if key.startswith(given)],
            "volumeMounts": [{"name": "shared", "mountPath": mount}],
            "resources": {"requests": size, "limits": size},
        }
    ],
}
job = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": name},
    "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 86400, "template": {"spec": pod}},  # Snakemake tries again
}
subprocess.run(["kubectl", "create", "--filename=-"], input=json.dumps(job), text=True, check=True, stdout=sys.stderr)
print(name)
