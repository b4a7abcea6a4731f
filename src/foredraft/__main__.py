"""`python -m foredraft` is the `foredraft` command."""

import sys

from foredraft.cli.main import main

sys.exit(main())
