#!/usr/bin/env bash
# Serve a real model on this machine, sweep it into one HDF5 file, and show the results.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf farm-demo
mkdir farm-demo

run() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

echo "Flow through a medium whose permeability is uncertain: 16 normal parameters, 9 sensors,"
echo "1024 finite-element solutions on every core of this machine."

cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
serve=(farm serve examples/diffusion/diffusion.py --workers "$cores" --port 0 --dir farm-demo/run)
printf '\n\033[1m$ %s &\033[0m\n' "${serve[*]}"
"${serve[@]}" >farm-demo/serve.log 2>&1 &
farm=$!
trap 'kill "$farm" 2>/dev/null; wait "$farm" || true' EXIT
until page=$(sed -n 's/^farm serves .* at //p' farm-demo/serve.log) && [[ -n "$page" ]]; do
    kill -0 "$farm" 2>/dev/null || { cat farm-demo/serve.log; exit 1; }
    sleep 0.1
done
printf 'The status page of this farm, for your browser: %s\n' "$page"

run farm sweep --to farm-demo/run --param theta=normal:0:1 --fix mesh=64 \
    --design sobol:1024 --seed 7 -o farm-demo/diffusion.h5
run farm sweep status farm-demo/diffusion.h5
run farm sweep plot farm-demo/diffusion.h5
run python examples/demo_table.py farm-demo/diffusion.h5

cat <<'END'

The figures:  open farm-demo/diffusion.html in a browser
The numbers:  farm-demo/diffusion.h5, with h5py, xarray, ArviZ, MATLAB
Your model:   farm init model.py                   (README.md)
END
if [[ -t 0 && -t 1 ]]; then
    read -r -t 60 -p "The farm stays for a minute, with its page at $page; Enter stops it. " || echo
fi
