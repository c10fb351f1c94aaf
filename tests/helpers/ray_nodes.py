"""A Ray cluster on this machine, in a process without JAX, which does not go with Ray's forks.

Prints the address of a head with one core; then obeys: `add` adds such a node, `lose` kills it. Ends with its input.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
# A node that refuses connections counts as dead soon; one on a busy machine may answer late.
CHECKS = {"initial_delay_ms": 500, "period_ms": 500, "timeout_ms": 20_000, "failure_threshold": 3}

folder = tempfile.mkdtemp(prefix="ray")  # short, as sockets' names must be
Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # Ray notes the address there, but does not make the folder
quick = {f"health_check_{name}": value for name, value in CHECKS.items()}
head = {**NODE, "include_dashboard": False, "temp_dir": folder, "_system_config": quick}
cluster = Cluster(initialize_head=True, head_node_args=head)
try:
    print(cluster.address, flush=True)
    nodes = []
    for line in sys.stdin:
        if line == "add\n":
            nodes.append(cluster.add_node(**NODE))
        elif line == "lose\n":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        print("done", flush=True)
finally:
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
