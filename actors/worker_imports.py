"""What workers of a private Ray import while they wait for their actors, as its `preload_python_modules` says.

Importing it imports torch with one thread, as Ray lets actors do that reserve a core or less.
"""

import os
from contextlib import suppress

from rayfed_ssl.imports import importing

os.environ.setdefault("OMP_NUM_THREADS", "1")

with importing(), suppress(Exception):  # the actor imports the same and reports what is wrong
    import actors.client_actor
    import actors.server_actor  # noqa: F401
