"""The NVIDIA driver and CUDA toolkits: source, exact sets, the running module, environment, proof.

pyinfra inventories/cluster.py deploys/cuda.py -y
"""

from pyinfra.context import host

from rackwright.operations import cuda, distribution, kernels, nvidia, nvidia_services, packages
from rackwright.runtime import refusals

refusals()
packages.settled(name="Packages: no interrupted work")
cuda.source(
    name="CUDA: the vendor's repository", cuda=host.data.cuda, driver=host.data.driver, origin=host.data.cuda_source
)
distribution.components(name="NVIDIA: the distribution's own components", driver=host.data.driver)
kernels.prerequisites(name="NVIDIA: headers and compilers", driver=host.data.driver, origin=host.data.cuda_source)
nvidia.modules(name="NVIDIA: no other driver on the GPUs", driver=host.data.driver)
nvidia.packages(
    name="NVIDIA: the driver", driver=host.data.driver, origin=host.data.cuda_source, rollout=host.data.rollout
)
nvidia.running(name="NVIDIA: the running module", driver=host.data.driver, rollout=host.data.rollout)
nvidia_services.services(name="NVIDIA: persistence and fabric", driver=host.data.driver, rollout=host.data.rollout)
cuda.toolkit(name="CUDA: the toolkits", cuda=host.data.cuda, origin=host.data.cuda_source)
cuda.environment(name="CUDA: paths and default", cuda=host.data.cuda)
nvidia_services.proof(name="NVIDIA: proof", driver=host.data.driver, tier=host.data.tier)
cuda.proof(name="CUDA: proof", cuda=host.data.cuda)
