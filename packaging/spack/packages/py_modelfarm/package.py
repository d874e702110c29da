# Copyright the contributors to farm.
#
# SPDX-License-Identifier: Apache-2.0

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyModelfarm(PythonPackage):
    """farm turns any expensive model into a service that a whole cluster works for."""

    pypi = "modelfarm/modelfarm-0.2.0.tar.gz"

    license("Apache-2.0", checked_by="farm")

    # `make release-check` prints the checksum of a source distribution. To build a clone instead:
    # spack develop --path CLONE py-modelfarm@0.2.0
    version("0.2.0")

    variant("plot", default=True, description="Reports and plots of sweeps")
    variant("xarray", default=False, description="Sweeps as xarray and netCDF")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.26:", type="build")

    # Those of pyproject.toml: tests/test_packaging.py compares them.
    depends_on("py-click@8.2:", type=("build", "run"))
    depends_on("py-fastapi@0.115:", type=("build", "run"))
    depends_on("py-h5py@3.11:", type=("build", "run"))
    depends_on("py-httptools@0.6.3:", type=("build", "run"))
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-orjson@3.10:", type=("build", "run"))
    depends_on("py-prometheus-client@0.20:", type=("build", "run"))
    depends_on("py-pyzmq@26.0:", type=("build", "run"))
    depends_on("py-rich@13.0:", type=("build", "run"))
    depends_on("py-scipy@1.15:", type=("build", "run"))
    depends_on("py-uvloop@0.19:", type=("build", "run"))

    depends_on("py-matplotlib@3.8.4:", when="+plot", type=("build", "run"))
    depends_on("py-xarray@2024.10:", when="+xarray", type=("build", "run"))
    depends_on("py-h5netcdf@1.3:", when="+xarray", type=("build", "run"))
