"""How hypothesis works here: by chance on a developer's machine, the same every time in CI."""

import os

from hypothesis import settings

# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")
