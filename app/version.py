"""The version of this installation, from its distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("picklog")
except PackageNotFoundError:  # run from a tree that was never installed
    VERSION = "0+unknown"
