"""HDF5 files open once their readers have closed them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from farm.storage.hdf5 import open_file

HOLD = """
import sys, time, h5py
with h5py.File(sys.argv[1]) as file:
    print("open", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("seconds", "opens"), [(0.5, True), (30, False)])
def test_a_short_look_by_another_program_is_waited_for(
    tmp_path: Path, seconds: float, opens: bool
) -> None:
    path = tmp_path / "s.h5"
    h5py.File(path, "w").close()
    command = [sys.executable, "-c", HOLD, str(path), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        if opens:
            open_file(path, "r+").close()
        else:
            with pytest.raises(BlockingIOError):
                open_file(path, "r+", patience_s=0.2)
        reader.kill()
