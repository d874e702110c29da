"""Rows of tables in a space with conditions and constraints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm.sweep.design.from_python import request_of
from farm.sweep.design.prepare import make_plan
from farm.sweep.errors import SweepError
from tests.sweep.samples import BEAM


def test_a_table_leaves_out_rows_and_values() -> None:
    frame = pd.DataFrame(
        {"E": [1, 1, 1], "load": [1, 2, 5], "solver": ["rk", "euler", "rk"], "order": [2, 3, None]}
    ).rename(columns={"E": "E[0]"})
    options: dict[str, Any] = {"where": "load < 4", "when": {"order": 'solver == "rk"'}}
    with pytest.raises(SweepError, match="row 2 has no order; expected one in every row where"):
        make_plan(request_of(frame, {"E[1]": 1, "E[2]": 1}, "sobol", None, **options),
                  lambda config: BEAM)  # fmt: skip
    frame.loc[2, "order"] = 1
    plan = make_plan(request_of(frame, {"E[1]": 1, "E[2]": 1}, "sobol", None, **options),
                     lambda config: BEAM)  # fmt: skip
    np.testing.assert_array_equal(plan.theta, [[1, 1, 0, 2], [1, 2, 1, np.nan]])
    assert plan.config_of(0) == {"solver": "rk", "order": 2}


def test_a_table_is_not_correlated() -> None:
    frame = pd.DataFrame({"E[0]": [1], "E[1]": [1], "E[2]": [1], "load": [2]})
    request = request_of(frame, {}, "sobol", None, correlation={("E[0]", "load"): 0.5})
    with pytest.raises(SweepError, match="a table has its points as they are"):
        make_plan(request, lambda config: BEAM)


def test_no_row_is_left() -> None:
    frame = pd.DataFrame({"E[0]": [1], "E[1]": [1], "E[2]": [1], "load": [2]})
    with pytest.raises(SweepError, match="no row of table 'DataFrame' satisfies load > 5"):
        make_plan(request_of(frame, {}, "sobol", None, where="load > 5"), lambda config: BEAM)
