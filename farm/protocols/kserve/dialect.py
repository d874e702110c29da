"""Dialects of KServe v2: the server's name, the texts of errors, and the form of gRPC answers.

`open` is that of the Open Inference Protocol, in farm's own words. `triton` answers as NVIDIA's
Triton does, for programs that compare its name or its texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farm.call import Call, ModelInfo, Operation
from farm.encoding.tensors import shown
from farm.errors import FarmError, InvalidInput, ModelNotFound, UnsupportedFeature
from farm.protocols.kserve import triton
from farm.protocols.kserve.grpc import codec as grpc_codec
from farm.protocols.kserve.grpc import triton as grpc_triton
from farm.protocols.kserve.metadata import server_metadata
from farm.protocols.kserve.request import InferRequest, Wish, call_of
from farm.protocols.kserve.rest import codec as rest_codec
from farm.protocols.kserve.rest import triton as rest_triton
from farm.settings import Settings, SettingsError

HTTP, GRPC = "HTTP end point", "ModelInfer RPC"
"""Triton's names of the two ways that give one answer to a request."""


class OpenDialect:
    """The Open Inference Protocol, as other servers speak it, too."""

    # Codecs, as functions of modules, so that reader processes can run them.
    decode_rest = staticmethod(rest_codec.decode_infer)
    decode_grpc = staticmethod(grpc_codec.decode_infer)
    decode_streamed = staticmethod(grpc_codec.decode_streamed)

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's name, version and extensions."""
        return server_metadata()

    def unknown_model(
        self, name: str, models: Iterable[str], tell: Callable[[str], FarmError]
    ) -> FarmError:
        """Return the error for a model that is not among `models`.

        tell: makes the error with a text; Unavailable if the model may yet come.
        """
        names = list(models)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return tell(
            f"no model {shown(name)} is served here; the models are "
            f"{', '.join(map(repr, names[:20]))}{more}"
        )

    def version_of(self, text: str) -> str:
        """Return the version that a request means; "" is the greatest."""
        return text

    def unknown_version(self, model: str, version: str, every: Sequence[str]) -> FarmError:
        """Return the error for a version that the model does not have. every: those it has."""
        return ModelNotFound(
            f"model {shown(model)} has no version {shown(version)}; "
            f"it has {'version' if len(every) == 1 else 'the versions'} "
            f"{', '.join(map(repr, every[:20]))}"
        )

    def unloaded_model(self, name: str) -> FarmError:
        """Return the error for a model that a client has unloaded."""
        return ModelNotFound(f"model {name!r} is unloaded; load it in the repository")

    def call_of(
        self, request: InferRequest, info: ModelInfo, *, streaming: bool = False, by: str = HTTP
    ) -> tuple[Call, Wish]:
        """Return what `request.call_of` does. by: HTTP or GRPC, for the texts of errors."""
        return call_of(request, info, streaming=streaming)

    def refusal(self, kind: str, message: str) -> str:
        """Return the text for a request that is refused before it is decoded."""
        return message


class TritonDialect(OpenDialect):
    """Triton's names, texts and codes; typed gRPC requests get raw answers."""

    decode_rest = staticmethod(rest_triton.decode_infer)
    decode_grpc = staticmethod(grpc_triton.decode_infer)
    decode_streamed = staticmethod(grpc_triton.decode_streamed)

    def server_metadata(self) -> dict[str, Any]:
        """Return Triton's name, the version whose protocol is followed, and its extensions."""
        ours = server_metadata()
        return {
            "name": triton.SERVER_NAME,
            "version": f"{triton.FOLLOWED_VERSION}+farm.{ours['version']}",
            "extensions": [name for name in triton.EXTENSIONS if name in ours["extensions"]],
        }

    def unknown_model(
        self, name: str, models: Iterable[str], tell: Callable[[str], FarmError]
    ) -> FarmError:
        """Return the error: a wrong argument, unless the model may yet come."""
        error = tell(f"{triton.UNKNOWN_MODEL} '{triton.cut(name)}' is not found")
        return InvalidInput(error.message) if isinstance(error, ModelNotFound) else error

    def version_of(self, text: str) -> str:
        """Return the number that C++'s stol reads. Raises InvalidInput if there is none."""
        if not text:
            return text
        number = re.match(r"\s*([+-]?\d{1,18})", text)
        if number is None:
            raise InvalidInput(
                "failed to get model version from specified version string "
                f"'{triton.cut(text)}' (details: stol), version should be an integral value > 0"
            )
        if int(number[1]) < 0:
            raise InvalidInput(
                f"invalid model version specified '{triton.cut(text)}' , version should be an "
                "integral value > 0"
            )
        return str(int(number[1]))

    def unknown_version(self, model: str, version: str, every: Sequence[str]) -> FarmError:
        """Return the error, which does not name the others."""
        return ModelNotFound(
            f"{triton.UNKNOWN_MODEL} '{triton.cut(model)}' version {version} is not found"
        )

    def unloaded_model(self, name: str) -> FarmError:
        """Return the error: no version of the model is available."""
        return ModelNotFound(f"{triton.UNKNOWN_MODEL} '{name}' has no available versions")

    def call_of(
        self, request: InferRequest, info: ModelInfo, *, streaming: bool = False, by: str = HTTP
    ) -> tuple[Call, Wish]:
        """Return what `request.call_of` does; its errors have Triton's texts."""
        try:
            return call_of(request, info, streaming=streaming)
        except UnsupportedFeature:
            if Operation.STREAM in info.operations and Operation.EVALUATE not in info.operations:
                what = "doesn't support models with decoupled transaction policy"
                raise UnsupportedFeature(f"{by} {what}") from None
            raise
        except InvalidInput as error:
            text = triton.fault_of(request, info)
            raise (InvalidInput(text) if text else error) from None

    def refusal(self, kind: str, message: str) -> str:
        """Return Triton's text for wrong paths and methods."""
        return triton.REFUSALS.get(kind, message)


OPEN = OpenDialect()

DIALECTS: Mapping[str, OpenDialect] = {"open": OPEN, "triton": TritonDialect()}
"""The dialects by the value of `--kserve-dialect`."""


def read_options(values: Mapping[str, Any], settings: Settings) -> OpenDialect:
    """Return the dialect that the options name. Raises SettingsError."""
    name = values["kserve_dialect"]
    if name not in DIALECTS:
        raise SettingsError(f"kserve_dialect is {name!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
