"""Models of a server that answers lines."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import numpy as np

from farm.errors import InvalidRequest, ModelFailed, Unavailable
from farm.model import Config, Inputs, Model
from farm_line.codec import encode_numbers


def models_at(url: str, name: str | None) -> dict[str, Model]:
    """Return the model called `name` at `line://host:port`. Raises FarmErrors."""
    if name is None:
        raise InvalidRequest(f"{url} does not list its models; name one, as MODEL@{url}")
    return {name: LineModel(url, name)}


class LineModel(Model):
    """One model of such a server."""

    def __init__(self, url: str, name: str) -> None:
        """Query the model's sizes. Raises FarmErrors."""
        self._url = url
        self.name = name
        inputs, outputs = self._asked(f"{name}\n".encode()).split("->")
        self.inputs = {f"input{i}": int(n) for i, n in enumerate(inputs.split())}
        self.outputs = {f"output{i}": int(n) for i, n in enumerate(outputs.split())}

    def evaluate(self, inputs: Inputs, config: Config) -> dict[str, object]:
        """Return the outputs that the server answers."""
        numbers = encode_numbers(inputs[name] for name in self.inputs)
        answer = np.array(
            [float(x) for x in self._asked(f"{self.name} ".encode() + numbers).split()]
        )
        starts = np.cumsum(list(self.outputs.values()))[:-1]
        return dict(zip(self.outputs, np.split(answer, starts), strict=True))

    def _asked(self, line: bytes) -> str:
        parts = urlsplit(self._url)
        try:
            with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
                connection.sendall(line)
                with connection.makefile("rb") as answers:
                    answer = answers.readline().decode()
        except OSError as error:
            raise Unavailable(f"{self._url} cannot be reached: {error}") from None
        if not answer.endswith("\n"):
            raise Unavailable(f"{self._url} ended the connection without an answer")
        if answer.startswith("error: "):
            raise ModelFailed(answer.removeprefix("error: ").strip())
        return answer
