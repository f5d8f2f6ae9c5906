"""The function that each kind of process runs.

Knows: names of modules. Does not know: the modules, which are imported only where the process runs.
"""

from __future__ import annotations

PROGRAMS = {
    "controller": "cotswold.replication.runtime.controller_process:main",
    "data_head": "cotswold.dataservice.runtime.pool_process:main",
    "data_server": "cotswold.dataservice.runtime.server_process:main",
    "evaluator": "cotswold.replicas.evaluator_process:main",
    "keeper": "cotswold.replication.runtime.server_process:main",
    "replica": "cotswold.replicas.replica_process:main",
    "server": "cotswold.paramserver.runtime.server_process:main",
    "worker": "cotswold.batch.runtime.worker_process:main",
}
"""``"module:function"`` of each role."""
