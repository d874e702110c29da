"""Triton's clients, over HTTP and over gRPC, of the farm that a module's fixture `served` runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.triton_farm import GRPC, HTTP, Way
from tests.support.dispatcher_farm import Served


@pytest.fixture(params=[HTTP, GRPC], ids=lambda way: way.name)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
def client(way: Way, served: Served) -> Iterator[Any]:
    with way.sync.InferenceServerClient(way.address(served)) as found:
        yield found
