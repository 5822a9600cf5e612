"""Where the weights of an OpenVINO IR are: beside it under its name, or where it says.

Several ``.xml`` files can share one ``.bin``. OpenVINO takes its path beside that of the ``.xml``
and has no place for it in the file, so ours say it among their metadata.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitpe_deploy.errors import ArtifactError

WEIGHTS_KEY = "vitpe.weights"
"""Key in the metadata of an IR that shares its weights: the name of the ``.bin``."""

_TAIL_BYTES = 1 << 16
"""Metadata stand at the end of an ``.xml``."""

_SAID = re.compile(rb'<vitpe\.weights value="([^"]{1,255})"')


def weights_path(xml: Path) -> Path:
    """The ``.bin`` of an ``.xml``, which need not be there.

    Raises:
        ArtifactError: the file names one outside its folder.
    """
    with xml.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - _TAIL_BYTES))
        said = _SAID.search(file.read())
    if said is None:
        return xml.with_suffix(".bin")
    name = said[1].decode("utf-8", "replace")
    if Path(name).name != name or "\\" in name or name in (".", ".."):
        raise ArtifactError(
            f"{xml} names a weights file outside its folder: {name!r}",
            hint="Export the model again.",
        )
    return xml.with_name(name)
