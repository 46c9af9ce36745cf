"""``python -m patheval.zoo``: the same as ``patheval zoo train``."""

import sys

from patheval.zoo import making

if __name__ == "__main__":
    making.main(sys.argv[1:], "python -m patheval.zoo")
