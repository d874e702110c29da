"""Print mean and spread of the demo's sweep at the nine sensors, from the file alone."""

from __future__ import annotations

import sys

import h5py


def main() -> None:
    with h5py.File(sys.argv[1]) as file:
        u = file["out_0"][:][file["status"][:] == 1]
    mean, sd = u.mean(axis=0).reshape(3, 3), u.std(axis=0).reshape(3, 3)
    print(f"u at the sensors, mean and standard deviation over {len(u)} fields\n")
    print("          x = 1/4          x = 1/2          x = 3/4")
    for j in (2, 1, 0):
        cells = "   ".join(f"{mean[i, j]:.4f} ± {sd[i, j]:.4f}" for i in range(3))
        print(f"y = {j + 1}/4  {cells}")


if __name__ == "__main__":
    main()
