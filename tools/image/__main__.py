"""`python -m tools.image [ARCHITECTURE...]`: build the image, and print its size."""

import sys

from tools.image.build import NATIVE, archive_of, bill_of, build

for architecture in sys.argv[1:] or [NATIVE]:
    build(architecture)
    archive = archive_of(architecture)
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB unpacked; {bill_of(archive)} lists what is in it")  # noqa: T201
