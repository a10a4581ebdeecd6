"""Serve an application by Werkzeug: `python -m support.werkzeug_server PORT MODULE:NAME`."""

from __future__ import annotations

import sys

from werkzeug.serving import run_simple
from werkzeug.utils import import_string

if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), import_string(sys.argv[2]), threaded=True)
