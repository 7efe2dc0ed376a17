"""CUDA toolkits on every host: source, exact package set, environment, proof.

pyinfra inventories/cluster.py deploys/cuda.py -y
"""

from pyinfra.context import host

from rackwright.operations import cuda, packages
from rackwright.runtime import refusals

refusals()
packages.settled(name="Packages: no interrupted work")
cuda.source(name="CUDA: the vendor's repository", cuda=host.data.cuda, origin=host.data.cuda_source)
cuda.toolkit(name="CUDA: the toolkits", cuda=host.data.cuda, origin=host.data.cuda_source)
cuda.environment(name="CUDA: paths and default", cuda=host.data.cuda)
cuda.proof(name="CUDA: proof", cuda=host.data.cuda)
