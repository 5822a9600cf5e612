"""``python -m vitpe_deploy`` is ``vitpe``."""

from __future__ import annotations

import sys

from vitpe_deploy.cli import main

if __name__ == "__main__":
    sys.exit(main())
