#!/usr/bin/env bash
# Sweep a real model into one HDF5 file with a farm on this machine, and show the results.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p farm-demo
rm -f farm-demo/diffusion.*

run() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

echo "Flow through a medium whose permeability is uncertain: 16 normal parameters, 9 sensors,"
echo "1024 finite-element solutions on every core of this machine."
run farm sweep examples/diffusion/diffusion.py --param theta=normal:0:1 --fix mesh=64 \
    --design sobol:1024 --seed 7 -o farm-demo/diffusion.h5
run farm sweep status farm-demo/diffusion.h5
run farm sweep plot farm-demo/diffusion.h5
run python examples/demo_table.py farm-demo/diffusion.h5

cat <<'END'

The figures:  open farm-demo/diffusion.html in a browser
The numbers:  farm-demo/diffusion.h5, with h5py, xarray, ArviZ, MATLAB
Your model:   farm serve model.py --workers 4      (README.md)
END
